"""Programs on disk: the three public forms, read into records and written back.

* one JSON file, plain or gzipped: ``{"config": {...}, "core0": [...], ...}``;
* a folder with ``config.json`` and one ``core_<id>.json`` per core;
* the same with ``core_<id>.pim``: binary, preferred where both exist.

``config`` holds ``core_cnt`` and ``array_group_map`` (per core the number of
crossbars of each array group).  In a folder every core below ``core_cnt`` needs a
file and a map entry; in a single file a core that is absent does not exist.

Reading validates everything that later analyses rely on and raises
:class:`~raptor_cp.errors.MalformedInput`; binary files are memory-mapped one at a
time and stay on disk.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pim.artifact_checks import ProgramChecks
from raptor_cp.targets.pim.artifact_json import (
    FREE_TEXT_BYTES,
    MAX_TEXT_BYTES,
    MAX_TEXT_RATIO,
    MAX_VALUE_CHARACTERS,
    JsonText,
    instruction_text,
)
from raptor_cp.targets.pim.config import MAX_CORES
from raptor_cp.targets.pim.isa import HEADER_BYTES, MAGIC, RECORD, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from raptor_cp.targets.pim.config import PimConfig

_HEADER = struct.Struct("<4sII")
_CORE_FILE = re.compile(r"core_([0-9]{1,9})\.(json|pim)")
_CORE_KEY = re.compile(r"core([0-9]{1,9})")
_GZIP_MAGIC = b"\x1f\x8b"
_NO_RECORDS = np.zeros(0, dtype=RECORD)
_NO_RECORDS.setflags(write=False)


class ProgramForm(StrEnum):
    """How a program is written."""

    JSON = "json"
    GZIP = "json.gz"
    FOLDER_JSON = "folder-json"
    FOLDER_BINARY = "folder-binary"


@dataclass(frozen=True, slots=True, eq=False)
class CoreProgram:
    """One core's instruction stream.

    Attributes:
        core: id.
        array_groups: crossbars of each array group.
        length: number of instructions.
        held: the records, or None when they stay in ``file``.
        file: the binary file, or None.
    """

    core: int
    array_groups: NDArray[np.int64]
    length: int
    held: NDArray[np.void] | None = None
    file: Path | None = None

    @property
    def records(self) -> NDArray[np.void]:
        """``[length]`` records of :data:`~raptor_cp.targets.pim.isa.RECORD`.

        A memory-mapped file is opened anew each time and closed with the array.
        """
        if self.held is not None:
            return self.held
        if self.file is None or self.length == 0:
            return _NO_RECORDS
        return map_binary(self.file)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A checked program; ``cores`` in rising order of id, empty ones included."""

    name: str
    core_count: int
    cores: tuple[CoreProgram, ...]

    @property
    def instructions(self) -> int:
        """Instructions of all cores."""
        return sum(core.length for core in self.cores)

    @property
    def active_cores(self) -> tuple[CoreProgram, ...]:
        """Cores that have instructions."""
        return tuple(core for core in self.cores if core.length)


def read_program(path: str | Path, config: PimConfig | None = None) -> Program:
    """Read and check a program in any of the public forms.

    Args:
        path: file or folder.
        config: when given, core and crossbar counts must fit this chip.

    Raises:
        MalformedInput: with file, core, instruction, value and expectation.
    """
    source = Path(path)
    try:
        if source.is_dir():
            program = _read_folder(source)
        elif source.is_file():
            program = _read_file(source)
        else:
            raise MalformedInput(
                "program not found",
                where=str(source),
                expected="a JSON file, or a folder with config.json",
            )
    except OSError as error:
        raise MalformedInput(
            f"cannot read the program ({error.strerror or error})", where=str(source)
        ) from None
    checks = ProgramChecks(program.name, program.core_count)
    for core in program.cores:
        checks.add_core(core.core, core.array_groups, core.records)
    checks.finish()
    if not program.active_cores:
        raise MalformedInput("no core has an instruction", where=program.name)
    if config is not None:
        check_chip(program, config)
    return program


def make_program(
    streams: dict[int, tuple[NDArray[np.int64], NDArray[np.void]]],
    core_count: int,
    name: str = "program",
) -> Program:
    """A checked program from records in memory.

    Args:
        streams: core id -> (crossbars of each array group, records).
        core_count: declared number of cores.
        name: shown in messages.

    Raises:
        MalformedInput: as :func:`read_program`.
    """
    cores = []
    checks = ProgramChecks(name, core_count)
    for core, (groups, records) in sorted(streams.items()):
        if not 0 <= core < core_count:
            raise _bad_core(name, core, core_count)
        checks.add_core(core, groups, records)
        cores.append(CoreProgram(core, groups, len(records), held=records))
    checks.finish()
    return Program(name, core_count, tuple(cores))


def check_chip(program: Program, config: PimConfig) -> None:
    """Refuse a program that is larger than the chip.

    Raises:
        MalformedInput: too many cores, or too many crossbars on a core.
    """
    if program.core_count > config.core_count:
        raise MalformedInput(
            "the program has more cores than the chip",
            where=f"{program.name}: config.core_cnt",
            value=program.core_count,
            expected=f"at most {config.core_count} ({config.name})",
        )
    for core in program.cores:
        used = int(core.array_groups.sum())
        if used > config.crossbars_per_core:
            raise MalformedInput(
                "the array groups of a core need more crossbars than it has",
                where=f"{program.name}: config.array_group_map.core{core.core}",
                value=used,
                expected=f"at most {config.crossbars_per_core} ({config.name})",
            )


def map_binary(path: Path) -> NDArray[np.void]:
    """The records of one binary file, memory-mapped and read-only.

    Raises:
        MalformedInput: wrong magic or version, truncated or with trailing bytes.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise MalformedInput(
            "truncated header",
            where=str(path),
            value=f"{len(header)} bytes",
            expected=f"at least {HEADER_BYTES} bytes",
        )
    magic, version, count = _HEADER.unpack(header)
    if magic != MAGIC:
        raise MalformedInput(
            "wrong magic bytes", where=str(path), value=magic, expected=repr(MAGIC)
        )
    if version != VERSION:
        raise MalformedInput(
            "wrong format version", where=str(path), value=version, expected="1"
        )
    needed = HEADER_BYTES + count * RECORD.itemsize
    if size != needed:
        raise MalformedInput(
            "truncated file" if size < needed else "bytes after the last instruction",
            where=str(path),
            value=f"{size} bytes",
            expected=f"{needed} bytes for {count} instructions",
        )
    if count == 0:
        return _NO_RECORDS
    return np.memmap(path, dtype=RECORD, mode="r", offset=HEADER_BYTES, shape=(count,))


def _read_file(path: Path) -> Program:
    if path.suffix == ".pim":
        raise MalformedInput(
            "one core's binary file is not a program",
            where=str(path),
            expected="the folder that holds it",
        )
    config: object = None
    streams: dict[int, NDArray[np.void]] = {}
    with _opened(path, path.name) as text:
        for key in text.items():
            match = _CORE_KEY.fullmatch(key)
            if match is not None:
                core = int(match[1])
                if core in streams:
                    raise MalformedInput(
                        "two cores with one id", where=path.name, value=key
                    )
                streams[core] = text.instructions(key)
            else:
                value = text.value(MAX_VALUE_CHARACTERS, f"the value of {key!r}")
                config = value if key == "config" else config
        text.end()
    name = path.name
    if not isinstance(config, dict):
        raise MalformedInput(
            "no config object",
            where=name,
            expected='"config": {"core_cnt": ..., "array_group_map": ...}',
        )
    count, groups = _read_header(config, f"{name}: config", set(streams))
    cores = []
    for core, records in sorted(streams.items()):
        if core >= count:
            raise _bad_core(name, core, count)
        cores.append(CoreProgram(core, groups[core], len(records), held=records))
    return Program(name, count, tuple(cores))


def _read_folder(folder: Path) -> Program:
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise MalformedInput(
            "no config.json in the program folder",
            where=str(folder),
            expected='{"core_cnt": ..., "array_group_map": {...}}',
        )
    with _opened(config_path, str(config_path)) as text:
        config = text.value(MAX_VALUE_CHARACTERS, "the configuration")
        text.end()
    files: dict[int, Path] = {}
    with os.scandir(folder) as entries:
        names = sorted(
            entry.name for entry in entries if entry.name.startswith("core_")
        )
    for name in names:
        match = _CORE_FILE.fullmatch(name)
        path = folder / name
        if match is None or not path.is_file():
            raise MalformedInput(
                "not a core's instruction file",
                where=str(path),
                expected="core_<id>.json or core_<id>.pim",
            )
        core = int(match[1])
        known = files.get(core)
        if known is not None and known.stem != path.stem:
            raise MalformedInput(
                "two cores with one id",
                where=str(folder),
                value=(known.name, name),
                expected="one file per core",
            )
        if known is None or path.suffix == ".pim":
            files[core] = path
    if not isinstance(config, dict):
        raise MalformedInput(
            "the configuration is no object",
            where=str(config_path),
            value=config,
            expected='{"core_cnt": ..., "array_group_map": {...}}',
        )
    count, groups = _read_header(config, str(config_path), None)
    for core in files:
        if core >= count:
            raise _bad_core(str(folder), core, count)
    for core in range(count):
        if core not in files:
            raise MalformedInput(
                "a core has no instruction file",
                where=str(folder),
                value=f"core_{core}",
                expected=f"one file for each of the cores 0..{count - 1}",
            )
    cores = []
    for core, path in sorted(files.items()):
        if path.suffix == ".pim":
            length = len(map_binary(path))
            cores.append(CoreProgram(core, groups[core], length, file=path))
            continue
        with _opened(path, str(path)) as text:
            records = text.instructions(f"core_{core}")
            text.end()
        cores.append(CoreProgram(core, groups[core], len(records), held=records))
    return Program(str(folder), count, tuple(cores))


def _read_header(
    config: dict[object, object], where: str, present: set[int] | None
) -> tuple[int, dict[int, NDArray[np.int64]]]:
    """Core count and array groups of the cores that need them."""
    count = config.get("core_cnt")
    if type(count) is not int or not 1 <= count <= MAX_CORES:
        raise MalformedInput(
            "wrong core count",
            where=f"{where}.core_cnt",
            value=count,
            expected=f"an integer from 1 to {MAX_CORES}",
        )
    table = config.get("array_group_map")
    if not isinstance(table, dict):
        raise MalformedInput(
            "no array-group map",
            where=f"{where}.array_group_map",
            value=table,
            expected='{"core0": [crossbars of each group], ...}',
        )
    groups = {}
    for core in range(count) if present is None else sorted(present):
        if core >= count:
            continue
        key = f"core{core}"
        entry = table.get(key)
        if not isinstance(entry, list):
            raise MalformedInput(
                "no array groups for a core",
                where=f"{where}.array_group_map.{key}",
                value=entry,
                expected="a list with the crossbars of each group",
            )
        for index, value in enumerate(entry):
            if type(value) is not int or not 1 <= value <= 2**31 - 1:
                raise MalformedInput(
                    "wrong number of crossbars",
                    where=f"{where}.array_group_map.{key}[{index}]",
                    value=value,
                    expected="a positive integer",
                )
        groups[core] = np.array(entry, dtype=np.int64)
    return count, groups


def _bad_core(name: str, core: int, count: int) -> MalformedInput:
    return MalformedInput(
        "a core beyond the declared core count",
        where=name,
        value=core,
        expected=f"ids 0 to {count - 1} (config.core_cnt is {count})",
    )


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[JsonText]:
    """The text of a file, decompressed when the file is gzip."""
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        if packed:
            longest = max(FREE_TEXT_BYTES, MAX_TEXT_RATIO * path.stat().st_size)
            with gzip.GzipFile(fileobj=raw) as stream:
                yield JsonText(
                    cast("IO[bytes]", stream), name, min(longest, MAX_TEXT_BYTES)
                )
        else:
            yield JsonText(raw, name)


class ProgramWriter:
    """Writes a folder core by core, so that no two streams are in memory.

    Each file is written under a temporary name and renamed; ``config.json`` comes
    last, in :meth:`close`, so that a folder without it is visibly unfinished.
    """

    def __init__(
        self,
        folder: Path,
        core_count: int,
        *,
        binary: bool = True,
        extra: dict[str, object] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._count = core_count
        self._binary = binary
        self._extra = extra or {}
        self._groups: dict[int, list[int]] = {}

    def write_core(
        self, core: int, groups: NDArray[np.int64], records: NDArray[np.void]
    ) -> None:
        """Write one core; an empty stream is a file without instructions."""
        self._groups[core] = groups.tolist()
        suffix = "pim" if self._binary else "json"
        with _replaced(self._folder / f"core_{core}.{suffix}") as stream:
            if self._binary:
                stream.write(_HEADER.pack(MAGIC, VERSION, len(records)))
                stream.write(np.ascontiguousarray(records, dtype=RECORD).tobytes())
            else:
                for piece in instruction_text(records):
                    stream.write(piece.encode())

    def close(self) -> None:
        """Write empty files for the cores not written, then ``config.json``."""
        empty = np.zeros(0, dtype=np.int64)
        for core in range(self._count):
            if core not in self._groups:
                self.write_core(core, empty, _NO_RECORDS)
        header = _header(self._count, self._groups, self._extra)
        with _replaced(self._folder / "config.json") as stream:
            stream.write((json.dumps(header, separators=(",", ":")) + "\n").encode())


def write_program(
    program: Program, path: str | Path, form: ProgramForm = ProgramForm.FOLDER_BINARY
) -> None:
    """Write a program in one of the public forms; equal programs, equal bytes."""
    target = Path(path)
    if form in (ProgramForm.FOLDER_JSON, ProgramForm.FOLDER_BINARY):
        writer = ProgramWriter(
            target, program.core_count, binary=form is ProgramForm.FOLDER_BINARY
        )
        for core in program.cores:
            writer.write_core(core.core, core.array_groups, core.records)
        writer.close()
        return
    groups = {core.core: core.array_groups.tolist() for core in program.cores}
    header = _header(program.core_count, groups, {})
    with _replaced(target) as raw:
        if form is ProgramForm.GZIP:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                _write_single(program, header, cast("IO[bytes]", packed))
        else:
            _write_single(program, header, raw)


def _write_single(
    program: Program, header: dict[str, object], stream: IO[bytes]
) -> None:
    stream.write(b'{"config":' + json.dumps(header, separators=(",", ":")).encode())
    for core in program.cores:
        stream.write(f',\n"core{core.core}":'.encode())
        for piece in instruction_text(core.records):
            stream.write(piece.encode())
    stream.write(b"}\n")


def _header(
    count: int, groups: dict[int, list[int]], extra: dict[str, object]
) -> dict[str, object]:
    table = {f"core{core}": groups[core] for core in sorted(groups)}
    return {"core_cnt": count, **extra, "array_group_map": table}


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """Write to a temporary name and rename at the end."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as stream:
            yield stream
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
