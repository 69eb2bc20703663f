"""A point resolved: the scenario it means, and the name its content gives it.

The identity is a hash of the resolved scenario with every default filled in, of the
content of each file that it refers to (not of the file's path), of whether a program
is emitted, and of the program's version.  So equal points are one point, whatever
their overrides look like, and a changed file is another point.

A model's external tensor files are not part of it: of those only small constants
that give shapes are ever read.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, cast

import yaml

from raptor_cp.errors import MalformedInput
from raptor_cp.scenario import (
    KernelNetwork,
    LoadedScenario,
    OnnxNetwork,
    PimcompNetwork,
    Scenario,
    ZooNetwork,
    validate,
)
from raptor_cp.yaml_source import YamlSource

if TYPE_CHECKING:
    from raptor_cp.sweeps.sweep_file import Sweep, SweepPoint

_MISSING = "missing"
_FILE_KEYS = {"network": ("onnx", "pimcomp"), "target": ("config", "topology")}


@dataclass(frozen=True, slots=True)
class ResolvedPoint:
    """A point that can be sent to a worker.

    Attributes:
        id: see the module.
        position: of the point in the sweep file.
        scenario: its name; the file's when it is malformed.
        workload: the network, in short.
        overrides: the point's own.
        packed: :attr:`payload`, compressed: a sweep holds one for each point.
        error: why it is malformed; empty otherwise.
    """

    id: str
    position: int
    scenario: str
    workload: str
    overrides: Mapping[str, object]
    packed: bytes
    error: str = ""

    @property
    def payload(self) -> str:
        """JSON for :func:`raptor_cp.sweeps.execution.run_payload`.

        Means nothing when the point is malformed.
        """
        return zlib.decompress(self.packed).decode()


class Fingerprints:
    """SHA-256 of files; a file is read again only when its size or time differs."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    def of(self, path: Path) -> str:
        """Hexadecimal digest, or ``missing`` when there is no such file to read."""
        try:
            state = path.stat()
            key = (str(path), state.st_size, state.st_mtime_ns)
            if key not in self._known:
                with path.open("rb") as stream:
                    self._known[key] = hashlib.file_digest(stream, "sha256").hexdigest()
            return self._known[key]
        except OSError:
            return _MISSING


def program_version() -> str:
    """Version of the installed program."""
    return version("raptor-cp")


def resolve(sweep: Sweep) -> list[ResolvedPoint]:
    """All points of a sweep, in its order; equal ones stay repeated.

    Raises:
        MalformedInput: a scenario file is missing or is no YAML, or every point is
            malformed (then the sweep is).
    """
    sources: dict[Path, YamlSource] = {}
    prints = Fingerprints()
    points = []
    for position, point in enumerate(sweep.points):
        if point.scenario not in sources:
            sources[point.scenario] = YamlSource.read(point.scenario)
        points.append(_resolve(sweep, position, point, sources, prints))
    if points and all(point.error for point in points):
        more = f"; all {len(points)} points are malformed" if len(points) > 1 else ""
        raise MalformedInput(f"{points[0].error}{more}")
    return points


def _resolve(
    sweep: Sweep,
    position: int,
    point: SweepPoint,
    sources: Mapping[Path, YamlSource],
    prints: Fingerprints,
) -> ResolvedPoint:
    source = sources[point.scenario].copy()
    texts = override_texts(sweep.common) + override_texts(point.overrides)
    try:
        for text in texts:
            source.override(text)
        scenario = validate(source)
    except MalformedInput as error:
        identity = _digest(
            {
                "file": prints.of(point.scenario),
                "overrides": texts,
                "version": program_version(),
            }
        )
        return ResolvedPoint(
            identity,
            position,
            point.scenario.stem,
            point.scenario.stem,
            point.overrides,
            zlib.compress(b""),
            str(error),
        )
    loaded = LoadedScenario(scenario=scenario, folder=point.scenario.resolve().parent)
    files, content = _with_fingerprints(loaded, prints)
    payload = {
        "scenario": scenario.to_dict(),
        "folder": str(loaded.folder),
        "program": sweep.program,
        "files": files,
        "version": program_version(),
    }
    identity = _digest(
        {
            "scenario": content,
            "files": sorted(files.values()),
            "program": sweep.program,
            "version": program_version(),
        }
    )
    return ResolvedPoint(
        identity,
        position,
        scenario.name,
        workload(scenario),
        point.overrides,
        zlib.compress(json.dumps(payload, sort_keys=True).encode(), 1),
    )


def override_texts(overrides: Mapping[str, object]) -> list[str]:
    """``key.path=value`` as ``--set`` takes it, on one line each."""
    return [f"{key}={flow_text(value)}" for key, value in overrides.items()]


def flow_text(value: object) -> str:
    """A value as YAML on one line.

    >>> flow_text({"kind": "pim", "sizes": [1, 2]})
    '{kind: pim, sizes: [1, 2]}'
    >>> flow_text("2")
    "'2'"
    """
    plain = json.loads(json.dumps(value))  # tuples as lists
    text = yaml.safe_dump(
        plain, default_flow_style=True, sort_keys=False, width=2**31, allow_unicode=True
    )
    return text.strip().removesuffix("...").strip()


def workload(scenario: Scenario) -> str:
    """What a chip is asked to run, in short: points of one workload compare.

    Bit widths are left out: they are a choice of the design.
    """
    network = scenario.network
    match network:
        case ZooNetwork():
            shape = "x".join(map(str, network.input or ()))
            return f"{network.zoo}@{shape}" if shape else network.zoo
        case OnnxNetwork():
            sizes = [f"{k}={v}" for k, v in sorted(network.dims.items())]
            return " ".join([Path(network.onnx).name, *sizes])
        case PimcompNetwork():
            return Path(network.pimcomp).name
        case KernelNetwork():
            given = [f"{k}={v}" for k, v in sorted(network.params.items())]
            return " ".join([network.kernel, *given])
        case _:
            return scenario.name


def changed_file(files: Mapping[str, str], prints: Fingerprints) -> str | None:
    """The first of these files whose content is no longer the recorded one."""
    return next(
        (p for p, digest in files.items() if prints.of(Path(p)) != digest), None
    )


def _with_fingerprints(
    loaded: LoadedScenario, prints: Fingerprints
) -> tuple[dict[str, str], dict[str, object]]:
    """Files of a scenario by absolute path, and the scenario without their paths."""
    document = loaded.scenario.to_dict()
    files: dict[str, str] = {}
    for section, keys in _FILE_KEYS.items():
        entry = document[section]
        if not isinstance(entry, dict):
            continue
        for key in keys:
            name = entry.get(key)
            if isinstance(name, str) and not _built_in(section, key, name):
                path = loaded.path(name)
                files[str(path)] = digest = prints.of(path)
                entry[key] = f"sha256:{digest}"
                for table in _network_tables(path) if key == "config" else ():
                    files[str(table)] = prints.of(table)
        options = entry.get("options") if section == "target" else None
        for text in _texts(options):
            path = loaded.path(text)
            if _is_file(path):  # a plugin's own options may name files
                files[str(path)] = prints.of(path)
    return files, document


def _built_in(section: str, key: str, name: str) -> bool:
    if (section, key) != ("target", "config"):
        return False
    from raptor_cp.targets.pim.config import builtin_configs

    return name in builtin_configs()


def _network_tables(config: Path) -> Iterator[Path]:
    """Files that a chip configuration refers to, relative to it."""
    try:
        document = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    stack = [document]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            name = value.get("net_config_file_path")
            if isinstance(name, str):
                yield config.parent / name
            stack.extend(value.values())


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a text that can be no path
        return False


def _digest(document: Mapping[str, object]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_payload(payload: str) -> tuple[LoadedScenario, Mapping[str, object]]:
    """The scenario in a payload, and the payload itself."""
    document = cast("dict[str, object]", json.loads(payload))
    scenario = Scenario.model_validate(_tuples(document["scenario"]))
    folder = Path(os.fspath(str(document["folder"])))
    return LoadedScenario(scenario=scenario, folder=folder), document


def _tuples(value: object) -> object:
    """Lists as tuples, which is what the models take."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
