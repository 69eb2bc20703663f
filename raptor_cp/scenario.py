"""Scenario files: one YAML schema, frozen models, errors that say where.

Schema version ``raptor-cp/1``.  Unknown keys, wrong types and values outside
their range are :class:`~raptor_cp.errors.MalformedInput` with file, line, key
path, value and expectation.  Relative paths are relative to the scenario file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from raptor_cp.errors import MalformedInput
from raptor_cp.units import MAX_NS
from raptor_cp.yaml_source import YamlSource, yaml_text

SCHEMA = "raptor-cp/1"

#: Bounds of the scheduling spec ("Default throughput selection"): lower values
#: are a user's choice, higher ones would not be the specified search.
MAX_BEAM, MAX_QUEUE_EVALUATIONS, MAX_PACKINGS = 2, 32, 128

Positive = Annotated[int, Field(ge=1, le=2**31 - 1)]
Bits = Annotated[int, Field(ge=1, le=64)]
Nanoseconds = Annotated[int, Field(ge=0, le=MAX_NS)]
Size = Annotated[int, Field(ge=0, le=MAX_NS)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
NsMatrix = tuple[tuple[Nanoseconds, ...], ...]


class Model(BaseModel):
    """Frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )


class ZooNetwork(Model):
    """A built-in network."""

    zoo: Name
    input: tuple[Positive, ...] | None = None
    weight_bits: Bits = 16
    activation_bits: Bits = 16


class OnnxNetwork(Model):
    """An ONNX file (extra ``onnx``)."""

    onnx: Name
    dims: dict[str, Positive] = {}
    input_shapes: dict[str, tuple[Positive, ...]] = {}
    weight_bits: Bits | None = None
    activation_bits: Bits | None = None
    allow_unsupported: Literal["vector"] | None = None
    weights: Literal["drawn", "model"] = "drawn"


class PimcompNetwork(Model):
    """A PIMCOMP node list."""

    pimcomp: Name
    weight_bits: Bits | None = None
    activation_bits: Bits | None = None


class InlineNetwork(Model):
    """Layers written into the scenario; checked by ``network.inline``."""

    operations: tuple[dict[str, object], ...] = Field(min_length=1)
    input: tuple[Positive, ...] = (1, 3, 224, 224)
    weight_bits: Bits = 16
    activation_bits: Bits = 16


class KernelNetwork(Model):
    """A shipped kernel of the ``pe`` target."""

    kernel: Name
    params: dict[str, int | float | str | bool] = {}


class ExplicitWeight(Model):
    """A resident weight block."""

    id: Name
    slots: Positive


class ExplicitTask(Model):
    """A task with given costs (ns, one for all cores or one per core) or commands."""

    id: Name
    operation: Name | None = None
    execution_ns: Nanoseconds | tuple[Nanoseconds, ...] | None = None
    commands: tuple[dict[str, object], ...] | None = None
    weights: tuple[Name, ...] = ()

    @model_validator(mode="after")
    def _one_kind_of_work(self) -> ExplicitTask:
        if (self.execution_ns is None) == (self.commands is None):
            raise ValueError("exactly one of execution_ns and commands")
        return self


class ExplicitEdge(Model):
    """A dependency and the bytes it moves."""

    src: Name
    dst: Name
    bytes: Size = 0


class ExplicitNetwork(Model):
    """An explicit compute graph; tasks of one ``operation`` are its lanes."""

    tasks: tuple[ExplicitTask, ...] = Field(min_length=1)
    edges: tuple[ExplicitEdge, ...] = ()
    weights: tuple[ExplicitWeight, ...] = ()


_NETWORK_KEYS = ("zoo", "onnx", "pimcomp", "operations", "tasks", "kernel")


def _network_tag(value: object) -> str | None:
    if isinstance(value, Mapping):
        for key in _NETWORK_KEYS:
            if key in value:
                return f"<{key}>"
        return None
    for key in _NETWORK_KEYS:
        if hasattr(value, key):
            return f"<{key}>"
    return None


NetworkSpec = Annotated[
    Annotated[ZooNetwork, Tag("<zoo>")]
    | Annotated[OnnxNetwork, Tag("<onnx>")]
    | Annotated[PimcompNetwork, Tag("<pimcomp>")]
    | Annotated[InlineNetwork, Tag("<operations>")]
    | Annotated[ExplicitNetwork, Tag("<tasks>")]
    | Annotated[KernelNetwork, Tag("<kernel>")],
    Discriminator(_network_tag),
]


class PimTarget(Model):
    """A processing-in-memory chip: the simulator's configuration, with overrides."""

    kind: Literal["pim"]
    config: Name = "arch-a"
    cores: Positive | None = None
    crossbars_per_core: Positive | None = None
    crossbar_size: Positive | tuple[Positive, Positive] | None = None
    local_memory_bytes: Positive | None = None


class PeTarget(Model):
    """Processing elements with a dispatch-cost model (ADR-0064)."""

    kind: Literal["pe"]
    topology: Name | None = None
    elements: Positive | None = None


class TableMemory(Model):
    """Shared memory of a table target: bytes per beat and ns per beat."""

    width: Positive = 1
    read_ns: Nanoseconds = 0
    write_ns: Nanoseconds = 0


class TableTarget(Model):
    """Explicit costs: cores, weight slots, links.

    A transfer of B bytes between different cores takes ``handshake_ns +
    ceil(B / link_width) * link_ns``; both may be matrices [cores][cores].
    """

    kind: Literal["table"]
    cores: Positive
    slots_per_core: Positive = 2**31 - 1
    link_ns: Nanoseconds | NsMatrix = 1
    handshake_ns: Nanoseconds | NsMatrix = 0
    link_width: Positive = 1
    memory: TableMemory = TableMemory()


class PluginTarget(Model):
    """A target that another package registered (entry point ``raptor_cp.targets``)."""

    kind: Name
    options: dict[str, object]


def _target_tag(value: object) -> str | None:
    if isinstance(value, Mapping):
        kind, plugin = value.get("kind"), "options" in value
    else:
        kind, plugin = getattr(value, "kind", None), hasattr(value, "options")
    if kind in ("pim", "pe", "table"):
        return f"<{kind}>"
    return "<plugin>" if plugin else None


TargetSpec = Annotated[
    Annotated[PimTarget, Tag("<pim>")]
    | Annotated[PeTarget, Tag("<pe>")]
    | Annotated[TableTarget, Tag("<table>")]
    | Annotated[PluginTarget, Tag("<plugin>")],
    Discriminator(_target_tag),
]


class CoreLimits(Model):
    """Least and most cores of the stage that holds an operation."""

    min: Positive | None = None
    max: Positive | None = None

    @model_validator(mode="after")
    def _ordered(self) -> CoreLimits:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Constraints(Model):
    """Side constraints on the stages; operations by name."""

    forbidden_cuts: tuple[Name, ...] = ()  #: no stage may end after these operations
    together: tuple[tuple[Name, ...], ...] = ()  #: each list shares one stage
    max_cut_bytes: Size | None = None  #: bytes published across any one cut
    cores: dict[str, CoreLimits] = {}


class Pipeline(Model):
    """Pipeline depth (a maximum) and how stages are coupled."""

    stages: Positive = 8
    constraints: Constraints = Constraints()
    synchronization: Literal["double-buffer", "release", "barrier"] = "double-buffer"
    cross_stage: Literal["memory", "direct", "auto"] = "memory"


class Latency(Model):
    """Latency mode: the list scheduler."""

    method: Literal["peft", "heft", "cp-sat"] = "peft"


class Lowering(Model):
    """How operations are cut into lanes."""

    max_lanes: Annotated[int, Field(ge=1, le=4096)] = 64
    lanes_per_core: Annotated[int, Field(ge=1, le=64)] = 2
    accumulators: Literal["exact", "activation"] = "exact"
    constants: Literal["resident", "loaded"] = "resident"


class Search(Model):
    """Budgets of the search; the spec's limits are the largest legal values."""

    beam: Annotated[int, Field(ge=1, le=MAX_BEAM)] = MAX_BEAM
    queue_evaluations: Annotated[int, Field(ge=1, le=MAX_QUEUE_EVALUATIONS)] = (
        MAX_QUEUE_EVALUATIONS
    )
    packings: Annotated[int, Field(ge=1, le=MAX_PACKINGS)] = MAX_PACKINGS
    seeds: tuple[Literal["dp", "cp-sat"], ...] = ("dp", "cp-sat")
    timing: Literal["queue", "static"] = "queue"
    accept_initial: bool = False

    @model_validator(mode="after")
    def _starts_from_the_dp(self) -> Search:
        if "dp" not in self.seeds:
            raise ValueError("seeds must contain dp: it is the initialized schedule")
        return self


class Solver(Model):
    """CP-SAT, for the whole run, confirmations included."""

    deterministic_time: Annotated[float, Field(gt=0, le=600)] = 2.0
    workers: Annotated[int, Field(ge=1, le=8)] = 1
    random_seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    enabled: bool = True


class Range(Model):
    """Inclusive limits."""

    min: int | float | None = None
    max: int | float | None = None


class Expect(Model):
    """What a regression run asserts (figures from measured runs)."""

    verdict: Literal["FEASIBLE", "OPTIMAL", "INFEASIBLE", "UNKNOWN"] | None = None
    stages: Range | None = None
    interval_ns: Range | None = None
    latency_ns: Range | None = None
    gap: Range | None = None


class Scenario(Model):
    """A network, a chip, and what is asked."""

    schema_: Literal["raptor-cp/1"] = Field(alias="schema")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    network: NetworkSpec
    target: TargetSpec
    mode: Literal["pipeline", "latency"] = "pipeline"
    pipeline: Pipeline = Pipeline()
    latency: Latency = Latency()
    lowering: Lowering = Lowering()
    search: Search = Search()
    solver: Solver = Solver()
    expect: Expect = Expect()

    def to_dict(self) -> dict[str, object]:
        """Plain data with every default filled in; loads back to an equal scenario."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class LoadedScenario(Model):
    """A scenario and the folder its relative paths start from."""

    scenario: Scenario
    folder: Path

    def path(self, relative: str) -> Path:
        """A path of the scenario file, made absolute."""
        return self.folder / relative

    def relocated(self, folder: Path) -> dict[str, object]:
        """:meth:`Scenario.to_dict` for a file in ``folder``: paths lead from there.

        Names that are no files beside the scenario (built-in chips) stay.
        """
        document = self.scenario.to_dict()
        for section, key in _FILE_KEYS:
            entry = document[section]
            name = entry.get(key) if isinstance(entry, dict) else None
            if isinstance(entry, dict) and isinstance(name, str):
                path = self.path(name)
                if path.suffix and path.is_file():
                    entry[key] = _path_from(folder.resolve(), path.resolve())
        return document


#: Keys whose values may be paths of files.
_FILE_KEYS = (
    ("network", "onnx"),
    ("network", "pimcomp"),
    ("target", "config"),
    ("target", "topology"),
)


def _path_from(folder: Path, path: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()


def load(path: str | Path, overrides: tuple[str, ...] = ()) -> LoadedScenario:
    """Read a scenario file and apply ``key.path=value`` overrides.

    Raises:
        MalformedInput: unreadable or not a legal scenario.
    """
    source = YamlSource.read(Path(path))
    for text in overrides:
        source.override(text)
    return LoadedScenario(scenario=validate(source), folder=Path(path).resolve().parent)


def loads(
    text: str, *, name: str = "<scenario>", folder: Path | None = None
) -> LoadedScenario:
    """Like :func:`load`, from a string."""
    source = YamlSource.parse(text, name)
    return LoadedScenario(
        scenario=validate(source), folder=(folder or Path()).resolve()
    )


def from_mapping(
    document: Mapping[str, object],
    overrides: tuple[str, ...] = (),
    folder: Path | None = None,
) -> LoadedScenario:
    """Like :func:`load`, from the content of a scenario file.

    Raises:
        MalformedInput: not a legal scenario, or values that YAML cannot hold.
    """
    source = YamlSource.parse(yaml_text(document, "<scenario>"), "<scenario>")
    for text in overrides:
        source.override(text)
    return LoadedScenario(
        scenario=validate(source), folder=(folder or Path()).resolve()
    )


def validate(source: YamlSource) -> Scenario:
    """The scenario in ``source``, or one clear sentence about what is wrong."""
    data = source.data
    if not isinstance(data, Mapping):
        raise MalformedInput(
            "a scenario is a mapping",
            where=source.name,
            value=data,
            expected=f"keys schema: {SCHEMA}, name, network, target",
        )
    version = data.get("schema")
    if version != SCHEMA:
        raise MalformedInput(
            "unknown or missing schema version",
            where=source.place(("schema",)),
            value=version,
            expected=SCHEMA,
        )
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise source.explain(error, Scenario) from None


def json_schema() -> dict[str, object]:
    """JSON Schema of scenario files."""
    schema = Scenario.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "raptor-cp-scenario-1",
        **schema,
    }


def load_or_builtin(
    path: Path | None, overrides: tuple[str, ...] = ()
) -> LoadedScenario:
    """A scenario file; the built-in ResNet-18 on arch-A when there is none."""
    if path is not None:
        return load(path, overrides)
    from importlib.resources import files

    name = "resnet18-arch-a.yaml"
    text = (files("raptor_cp") / "builtin" / name).read_text("utf-8")
    source = YamlSource.parse(text, f"built-in {name}")
    for override in overrides:
        source.override(override)
    return LoadedScenario(scenario=validate(source), folder=Path().resolve())


def scenario_files(given: Sequence[Path]) -> list[Path]:
    """Files as given, folders as their ``*.yaml`` files by name.

    Raises:
        MalformedInput: a folder without scenarios.
    """
    files: list[Path] = []
    for path in given:
        if not path.is_dir():
            files.append(path)
            continue
        found = sorted(path.glob("*.yaml"))
        if not found:
            raise MalformedInput("no scenario files in this folder", where=str(path))
        files.extend(found)
    return files
