"""The chip configuration: pimsim-nn's own JSON, read verbatim and checked.

A configuration is one JSON file with ``chip_config`` (and an optional
``sim_config``, which says how to simulate and is ignored here) and a network
table beside it: ns per flit for every ordered pair of switches, ids as strings,
with the global memory under its own id (-10 as shipped).  Both may be gzipped.

What the simulator takes silently (a missing pair costs 0 ns, more DACs than
rows make a matrix product almost free) is refused here: every error names the
key path, the value and what would have been right.  Keys that the simulator
does not know are kept in :attr:`PimConfig.ignored_keys`, as it ignores them too.
"""

from __future__ import annotations

import gzip
import importlib.resources
import io
import json
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pim.config_reader import KeyReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.resources.abc import Traversable

    from numpy.typing import NDArray

#: Id under which the global memory's switch is registered when none is given.
GLOBAL_MEMORY_ID = -10
#: More cores than any published chip of this kind has; bounds the P x P tables.
MAX_CORES = 4096
#: Limit on the decompressed size of a configuration or network table, bytes.
MAX_FILE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """A memory: one FIFO server that moves ``data_width`` bytes a beat.

    Energies are pJ a beat, static power is mW; ``size_bytes`` is ``None`` where
    the file does not give it (the simulator never checks capacity).
    """

    data_width: int
    period_ns: Fraction
    read_latency_cycle: int
    write_latency_cycle: int
    read_energy_pj: float
    write_energy_pj: float
    static_power_mw: float
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class MatrixConfig:
    """Crossbars of one core; powers are mW, latencies cycles of ``period_ns``.

    ``xbar_latency_ns`` is already ns (a whole crossbar read).
    """

    xbar_array_count: int
    xbar_rows: int
    xbar_cols: int
    cell_precision: int
    period_ns: Fraction
    pipeline_mode: bool
    dac_resolution: int
    dac_count: int
    dac_latency_cycle: int
    xbar_latency_ns: Fraction
    sample_hold_latency_cycle: int
    adc_count: int
    adc_resolution: int
    adc_latency_cycle: int
    shift_adder_latency_cycle: int
    output_buffer_latency_cycle: int
    xbar_read_power_mw: float
    dac_dynamic_power_mw: float
    sample_hold_dynamic_power_mw: float
    adc_dynamic_power_mw: float
    shift_adder_dynamic_power_mw: float
    output_buffer_dynamic_power_mw: float


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """One core; ``vector_latency_cycle`` is waited as ns, whatever the period."""

    period_ns: Fraction
    rob_size: int
    vector_width: int
    vector_latency_cycle: int
    matrix: MatrixConfig
    local_memory: MemoryConfig
    static_power_mw: float
    fetch_power_mw: float
    decode_power_mw: float
    register_read_power_mw: float
    register_write_power_mw: float
    scalar_power_mw: float
    vector_alu_energy_pj: float
    vector_register_read_energy_pj: float
    vector_register_write_energy_pj: float


@dataclass(frozen=True, slots=True, eq=False)
class NetworkTable:
    """Pairwise links of ``P`` cores and the global memory, which is index ``P``.

    ``latency_ns[s, d]`` is int64 ns per flit, ``energy_pj[s, d]`` float64 pJ per
    flit; both have shape ``(P + 1, P + 1)``.  The row of the global memory is 0
    where the file leaves it out: nothing that is timed travels from there.
    """

    latency_ns: NDArray[np.int64]
    energy_pj: NDArray[np.float64]

    @property
    def cores(self) -> int:
        """Number of cores ``P``."""
        return len(self.latency_ns) - 1


@dataclass(frozen=True, slots=True, eq=False)
class PimConfig:
    """A whole chip, with the place it was read from.

    ``document`` is the parsed file as it was; do not change it.
    """

    name: str
    core_count: int
    core: CoreConfig
    global_memory: MemoryConfig
    global_memory_id: int
    bus_width: int
    layout: tuple[int, int]
    topology: str
    network: NetworkTable
    ignored_keys: tuple[str, ...]
    document: Mapping[str, object]

    @property
    def crossbars_per_core(self) -> int:
        """Core capacity in weight slots."""
        return self.core.matrix.xbar_array_count

    @property
    def crossbar_size(self) -> tuple[int, int]:
        """Rows and columns of one crossbar."""
        return self.core.matrix.xbar_rows, self.core.matrix.xbar_cols

    def with_overrides(
        self,
        *,
        core_count: int | None = None,
        crossbar_count: int | None = None,
        crossbar_size: int | tuple[int, int] | None = None,
    ) -> PimConfig:
        """A copy with another core count, crossbar count or crossbar size.

        Raises:
            MalformedInput: a value is not positive, the network table has fewer
                cores, or the converters no longer fit the crossbar.
        """
        matrix = self.core.matrix
        count = self.core_count
        table = self.network
        if core_count is not None:
            count = _positive(core_count, "core count")
            if count > table.cores:
                raise MalformedInput(
                    "core count exceeds the network table",
                    where=self.name,
                    value=count,
                    expected=f"at most {table.cores}, the cores that have links",
                )
            if count < table.cores:
                keep = np.append(np.arange(count), table.cores)
                table = NetworkTable(
                    table.latency_ns[np.ix_(keep, keep)],
                    table.energy_pj[np.ix_(keep, keep)],
                )
        if crossbar_count is not None:
            matrix = replace(
                matrix, xbar_array_count=_positive(crossbar_count, "crossbar count")
            )
        if crossbar_size is not None:
            rows, cols = (
                (crossbar_size, crossbar_size)
                if isinstance(crossbar_size, int)
                else crossbar_size
            )
            matrix = replace(
                matrix,
                xbar_rows=_positive(rows, "crossbar rows"),
                xbar_cols=_positive(cols, "crossbar columns"),
            )
        _check_converters(matrix, self.name)
        return replace(
            self,
            core_count=count,
            core=replace(self.core, matrix=matrix),
            network=table,
        )


def builtin_configs() -> tuple[str, ...]:
    """Names that :func:`load_config` knows without a file, sorted.

    >>> "arch-a" in builtin_configs()
    True
    """
    folder = _builtin_folder()
    names = (entry.name for entry in folder.iterdir())
    return tuple(
        sorted(
            name.removesuffix(".json")
            for name in names
            if name.endswith(".json") and not name.endswith(".network.json")
        )
    )


def load_config(
    source: str | Path,
    *,
    core_count: int | None = None,
    crossbar_count: int | None = None,
    crossbar_size: int | tuple[int, int] | None = None,
) -> PimConfig:
    """Read a configuration file, or a built-in one by its name.

    An existing file wins over a built-in configuration of the same name.  The
    network table's path is relative to the configuration file.

    Raises:
        MalformedInput: the file or its network table is missing or wrong.
    """
    path = Path(source)
    opened: Callable[[str], bytes]
    if str(source) in builtin_configs() and not path.is_file():
        folder = _builtin_folder()
        name, opened = f"{source}.json", lambda item: _read_entry(folder, item)
    else:
        name, opened = str(path), lambda item: _read_path(path.parent, item)
        if not path.is_file():
            raise MalformedInput(
                "chip configuration not found",
                where=str(path),
                expected="a JSON file, or one of " + ", ".join(builtin_configs()),
            )
        name = path.name
    text = opened(name)
    shown = str(source)
    document = _parse(text, shown)
    config = read_config(document, shown, opened, core_count=core_count)
    return config.with_overrides(
        crossbar_count=crossbar_count, crossbar_size=crossbar_size
    )


def read_config(
    document: object,
    name: str,
    open_relative: Callable[[str], bytes],
    *,
    core_count: int | None = None,
) -> PimConfig:
    """Build a :class:`PimConfig` from parsed JSON.

    Args:
        document: the parsed configuration.
        name: shown in messages.
        open_relative: reads the network table, given its path in the file.
        core_count: overrides ``chip_config.core_cnt``.

    Raises:
        MalformedInput: with the key path of what is wrong.
    """
    root = KeyReader.root(document, name)
    chip = root.section("chip_config")
    core = chip.section("core_config")
    declared = chip.integer("core_cnt", minimum=1, maximum=MAX_CORES)
    cores = declared if core_count is None else _positive(core_count, "core count")
    if cores > MAX_CORES:
        raise MalformedInput(
            "core count is out of range",
            where=name,
            value=cores,
            expected=f"1 to {MAX_CORES}",
        )
    switch = chip.integer(
        "global_memory_switch_id", minimum=-(2**31), default=GLOBAL_MEMORY_ID
    )
    own_switch = core.integer(
        "global_memory_switch_id", minimum=-(2**31), default=GLOBAL_MEMORY_ID
    )
    if switch != own_switch:
        raise MalformedInput(
            "cores address another global memory than the chip has",
            where=core.path("global_memory_switch_id"),
            value=own_switch,
            expected=f"{switch}, as in chip_config.global_memory_switch_id",
        )
    if 0 <= switch < cores:
        raise MalformedInput(
            "the global memory has the id of a core",
            where=chip.path("global_memory_switch_id"),
            value=switch,
            expected=f"an id outside 0..{cores - 1}, e.g. {GLOBAL_MEMORY_ID}",
        )
    network = chip.section("network_config")
    layout = network.pair("layout", minimum=0, default=(0, 0))
    table_path = network.text("net_config_file_path")
    bus_width = network.integer("bus_width", minimum=1, default=16)
    topology = network.text("bus_topology", default="mesh")
    matrix = _read_matrix(core.section("matrix_config"))
    core_config = _read_core(core, matrix)
    memory = _read_memory(chip.section("global_memory_config"))
    _check_converters(matrix, name)
    network.finish()
    chip.finish()
    table_text = open_relative(table_path)
    table_name = f"{name} -> {table_path}"
    table = read_network(_parse(table_text, table_name), table_name, cores, switch)
    return PimConfig(
        name=name,
        core_count=cores,
        core=core_config,
        global_memory=memory,
        global_memory_id=switch,
        bus_width=bus_width,
        layout=layout,
        topology=topology,
        network=table,
        ignored_keys=tuple(root.ignored()),
        document=root.names(),
    )


def _read_core(core: KeyReader, matrix: MatrixConfig) -> CoreConfig:
    power = {
        key: core.real(key, minimum=0.0, default=0.0)
        for key in (
            "inst_fetch_static_power",
            "inst_decode_static_power",
            "inst_decode_offset_static_power",
            "reg_file_static_power",
            "scalar_static_power",
            "vector_alu_static_power",
            "vector_reg_static_power",
            "transfer_static_power",
        )
    }
    for key in ("controller_static_power", "controller_dynamic_power"):
        core.real(key, minimum=0.0, default=0.0)  # known, and never used
    core.real("transfer_dynamic_power", minimum=0.0, default=0.0)
    result = CoreConfig(
        period_ns=core.rational("period", default=Fraction(1)),
        rob_size=core.integer("rob_size", minimum=1, default=1),
        vector_width=core.integer("vector_width", minimum=1, default=16),
        vector_latency_cycle=core.integer("vector_latency_cycle", minimum=0, default=8),
        matrix=matrix,
        local_memory=_read_memory(core.section("local_memory_config")),
        static_power_mw=sum(power.values()),
        fetch_power_mw=core.real("inst_fetch_dynamic_power", minimum=0.0, default=0.0),
        decode_power_mw=core.real("inst_decode_dynamic_power", minimum=0.0, default=0.0)
        + core.real("inst_decode_offset_dynamic_power", minimum=0.0, default=0.0),
        register_read_power_mw=core.real(
            "reg_file_read_dynamic_power", minimum=0.0, default=0.0
        ),
        register_write_power_mw=core.real(
            "reg_file_write_dynamic_power", minimum=0.0, default=0.0
        ),
        scalar_power_mw=core.real("scalar_dynamic_power", minimum=0.0, default=0.0),
        vector_alu_energy_pj=core.real(
            "vector_alu_dynamic_energy", minimum=0.0, default=0.0
        ),
        vector_register_read_energy_pj=core.real(
            "vector_reg_read_dynamic_energy", minimum=0.0, default=0.0
        ),
        vector_register_write_energy_pj=core.real(
            "vector_reg_write_dynamic_energy", minimum=0.0, default=0.0
        ),
    )
    core.finish()
    return result


def _read_matrix(matrix: KeyReader) -> MatrixConfig:
    rows, cols = matrix.pair("xbar_size", minimum=1, default=(128, 128))
    for key in ("dac", "sample_hold", "adc", "shift_adder", "input_buffer"):
        matrix.real(f"{key}_static_power", minimum=0.0, default=0.0)  # never used
    matrix.real("output_buffer_static_power", minimum=0.0, default=0.0)
    matrix.real("input_buffer_dynamic_power", minimum=0.0, default=0.0)
    result = MatrixConfig(
        xbar_array_count=matrix.integer("xbar_array_count", minimum=1),
        xbar_rows=rows,
        xbar_cols=cols,
        cell_precision=matrix.integer("cell_precision", minimum=1, default=2),
        period_ns=matrix.rational("period", default=Fraction(25, 32)),
        pipeline_mode=matrix.boolean("pipeline_mode", default=True),
        dac_resolution=matrix.integer("dac_resolution", minimum=1, default=1),
        dac_count=matrix.integer("dac_count", minimum=1, default=128),
        dac_latency_cycle=matrix.integer("dac_latency_cycle", minimum=0, default=1),
        xbar_latency_ns=matrix.rational(
            "xbar_latency", default=Fraction(30), zero_allowed=True
        ),
        sample_hold_latency_cycle=matrix.integer(
            "sample_hold_latency_cycle", minimum=0, default=1
        ),
        adc_count=matrix.integer("adc_count", minimum=1, default=1),
        adc_resolution=matrix.integer("adc_resolution", minimum=1, default=1),
        adc_latency_cycle=matrix.integer("adc_latency_cycle", minimum=0, default=1),
        shift_adder_latency_cycle=matrix.integer(
            "shift_adder_latency_cycle", minimum=0, default=1
        ),
        output_buffer_latency_cycle=matrix.integer(
            "output_buffer_latency_cycle", minimum=0, default=1
        ),
        xbar_read_power_mw=matrix.real("xbar_read_power", minimum=0.0, default=0.0),
        dac_dynamic_power_mw=matrix.real("dac_dynamic_power", minimum=0.0, default=0.0),
        sample_hold_dynamic_power_mw=matrix.real(
            "sample_hold_dynamic_power", minimum=0.0, default=0.0
        ),
        adc_dynamic_power_mw=matrix.real("adc_dynamic_power", minimum=0.0, default=0.0),
        shift_adder_dynamic_power_mw=matrix.real(
            "shift_adder_dynamic_power", minimum=0.0, default=0.0
        ),
        output_buffer_dynamic_power_mw=matrix.real(
            "output_buffer_dynamic_power", minimum=0.0, default=0.0
        ),
    )
    matrix.finish()
    return result


def _read_memory(memory: KeyReader) -> MemoryConfig:
    size = memory.integer("memory_size", minimum=0, maximum=2**62, default=-1)
    result = MemoryConfig(
        data_width=memory.integer("data_width", minimum=1, default=16),
        period_ns=memory.rational("period", default=Fraction(1)),
        read_latency_cycle=memory.integer("read_latency_cycle", minimum=0, default=8),
        write_latency_cycle=memory.integer(
            "write_latency_cycle", minimum=0, default=10
        ),
        read_energy_pj=memory.real("read_dynamic_energy", minimum=0.0, default=0.0),
        write_energy_pj=memory.real("write_dynamic_energy", minimum=0.0, default=0.0),
        static_power_mw=memory.real("static_power", minimum=0.0, default=1.0),
        size_bytes=None if size < 0 else size,
    )
    memory.finish()
    return result


def _check_converters(matrix: MatrixConfig, name: str) -> None:
    """Refuse converter counts for which the simulator's division gives 0 passes."""
    section = "chip_config.core_config.matrix_config"
    if matrix.dac_count > matrix.xbar_rows:
        raise MalformedInput(
            "more DACs than crossbar rows",
            where=f"{name}: {section}.dac_count",
            value=matrix.dac_count,
            expected=f"at most {matrix.xbar_rows} (xbar_size rows)",
            hint="the simulator would make every mvmul almost free",
        )
    if matrix.adc_count > matrix.xbar_cols:
        raise MalformedInput(
            "more ADCs than crossbar columns",
            where=f"{name}: {section}.adc_count",
            value=matrix.adc_count,
            expected=f"at most {matrix.xbar_cols} (xbar_size columns)",
        )


def read_network(
    document: object, name: str, cores: int, memory_id: int
) -> NetworkTable:
    """Check a network table and make it dense.

    Every ordered pair of different cores, and every core to the global memory,
    must have a latency: a missing one would cost 0 ns without a word.

    Raises:
        MalformedInput: with the pair that is missing or wrong.
    """
    root = KeyReader.root(document, name)
    latency = root.section("latency")
    rows = latency.names()
    for core in range(cores):
        if str(core) not in rows:
            raise MalformedInput(
                "the network table has no links from a core",
                where=latency.path(str(core)),
                expected=f"a row for each of the cores 0..{cores - 1}",
                hint="lower the core count or use the chip's own table",
            )
    ids = [str(core) for core in range(cores)] + [str(memory_id)]
    size = cores + 1
    nanoseconds = np.zeros((size, size), dtype=np.int64)
    for source, key in enumerate(ids):
        if key not in rows:
            continue  # the global memory: what it returns is free
        row = latency.section(key)
        required = source < cores
        values = row.integers(ids, skip=source, required=required)
        nanoseconds[source] = values
    energy = np.zeros((size, size), dtype=np.float64)
    if "energy" in root.names():
        section = root.section("energy")
        present = section.names()
        for source, key in enumerate(ids):
            if key in present:
                energy[source] = section.section(key).reals(ids)
    nanoseconds.setflags(write=False)
    energy.setflags(write=False)
    return NetworkTable(nanoseconds, energy)


def _positive(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MalformedInput(
            f"{what} is not a positive integer", value=value, expected="at least 1"
        )
    if value > 2**31 - 1:
        raise MalformedInput(
            f"{what} is out of range", value=value, expected=f"at most {2**31 - 1}"
        )
    return value


def _builtin_folder() -> Traversable:
    return importlib.resources.files("raptor_cp.targets.pim") / "configs"


def _read_entry(folder: Traversable, name: str) -> bytes:
    return (folder / name).read_bytes()


def _read_path(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise MalformedInput(
            f"cannot read the file ({reason})",
            where=str(path),
            expected="a readable file, relative to the configuration file",
        ) from None
    return _bounded(data, str(path))


def _bounded(data: bytes, name: str) -> bytes:
    if len(data) > MAX_FILE_BYTES:
        raise MalformedInput(
            "the file is too large", where=name, expected=f"<= {MAX_FILE_BYTES} bytes"
        )
    return data


def _parse(data: bytes, name: str) -> object:
    """JSON from plain or gzipped bytes; numbers with a point become exact."""
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
                data = _bounded(stream.read(MAX_FILE_BYTES + 1), name)
        except (OSError, EOFError) as error:
            raise MalformedInput(f"damaged gzip data ({error})", where=name) from None
    try:
        return json.loads(
            data.decode("utf-8-sig"),
            parse_float=_exact,
            parse_constant=_no_constant,
            object_pairs_hook=_unique,
        )
    except (ValueError, RecursionError) as error:
        if isinstance(error, MalformedInput):
            raise MalformedInput(
                error.what, where=name, value=error.value, expected=error.expected
            ) from None
        raise MalformedInput(f"not valid JSON ({error})", where=name) from None


def _exact(text: str) -> Fraction:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedInput(
            "number out of range", value=text, expected="a finite number"
        )
    # The simulator reads doubles; the shortest decimal of the same double is
    # what the author meant (0.78125, not 0.1000000000000000055).
    return Fraction(repr(value))


def _no_constant(text: str) -> object:
    raise MalformedInput("not a number", value=text, expected="a finite number")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise MalformedInput("duplicate key", value=key, expected="each key once")
        result[key] = value
    return result
