"""The record of what a kernel issued: commands and waits, in program order.

A log has one text form (JSON lines), the same bytes for the same kernel and
parameters; it holds no costs, so it can be replayed under another cost model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeAlias, cast

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.commands import (
    CompositeCmd,
    CopyCmd,
    DmaReadCmd,
    DmaWriteCmd,
    DType,
    GemmCmd,
    MathCmd,
    MemorySpace,
    OpSpec,
    PeCommand,
    PeCpuOverheadCmd,
    Scope,
    TensorHandle,
    command_reads,
    command_writes,
)

SCHEMA = "raptor-cp/op-log/1"

JsonObject: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Issue:
    """The CPU issues a command."""

    command: PeCommand


@dataclass(frozen=True, slots=True)
class Wait:
    """The CPU waits until command ``command`` (its index among issues) is complete."""

    command: int


OpLogEntry: TypeAlias = Issue | Wait


@dataclass(frozen=True, slots=True)
class OpLog:
    """Everything one kernel issued on one element."""

    entries: tuple[OpLogEntry, ...]

    @property
    def commands(self) -> tuple[PeCommand, ...]:
        """The issued commands, in order."""
        return tuple(e.command for e in self.entries if isinstance(e, Issue))

    def to_bytes(self) -> bytes:
        """JSON lines: a header, then tensors at first use, commands and waits.

        Raises:
            MalformedInput: an extra of a type that a log cannot hold, or two
                different tensors of one name.
        """
        records: list[JsonObject] = [{"schema": SCHEMA}]
        known: dict[str, TensorHandle] = {}
        for entry in self.entries:
            if isinstance(entry, Wait):
                records.append({"wait": entry.command})
                continue
            for handle in _handles(entry.command):
                if handle.name not in known:
                    known[handle.name] = handle
                    records.append({"tensor": _tensor_record(handle)})
                elif known[handle.name] != handle:
                    raise MalformedInput(
                        "two different tensors of one name",
                        where=f"tensor {handle.name}",
                    )
            records.append({"issue": _command_record(entry.command)})
        lines = (json.dumps(r, separators=(",", ":"), allow_nan=False) for r in records)
        return ("\n".join(lines) + "\n").encode("utf-8")

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str = "op log") -> OpLog:
        """Read what :meth:`to_bytes` wrote.

        Raises:
            MalformedInput: names the line that cannot be read.
        """
        tensors: dict[str, TensorHandle] = {}
        entries: list[OpLogEntry] = []
        issued = 0
        for number, line in enumerate(data.decode("utf-8").splitlines(), start=1):
            try:
                record = json.loads(line)
                ((kind, body),) = record.items()
                if kind == "schema":
                    if body != SCHEMA:
                        raise ValueError(f"schema {body!r} is not {SCHEMA!r}")
                elif kind == "tensor":
                    tensors[body["name"]] = read_tensor(body)
                elif kind == "wait":
                    if type(body) is not int or not 0 <= body < issued:
                        raise ValueError(f"no command {body!r} was issued before")
                    entries.append(Wait(body))
                elif kind == "issue":
                    entries.append(Issue(read_command(body, tensors)))
                    issued += 1
                else:
                    raise ValueError(f"unknown record {kind!r}")
            except (KeyError, TypeError, ValueError, AttributeError) as problem:
                raise MalformedInput(
                    f"cannot read the record: {problem}", where=f"{where}:{number}"
                ) from problem
        return cls(tuple(entries))


def _handles(command: PeCommand) -> tuple[TensorHandle, ...]:
    tracked = command.rw_handles if isinstance(command, CompositeCmd) else ()
    return (*command_reads(command), *command_writes(command), *tracked)


def _tensor_record(handle: TensorHandle) -> JsonObject:
    return {
        "name": handle.name,
        "shape": list(handle.shape),
        "dtype": handle.dtype.value,
        "space": handle.space.value,
    }


def read_tensor(body: JsonObject) -> TensorHandle:
    """The tensor of a record (keys ``name shape dtype space``)."""
    shape = cast("list[int]", body["shape"])
    return TensorHandle(
        str(body["name"]),
        tuple(int(extent) for extent in shape),
        DType(str(body["dtype"])),
        MemorySpace(str(body["space"])),
    )


def _op_record(op: OpSpec) -> JsonObject:
    for key, value in op.extra.items():
        if not _plain(value):
            raise MalformedInput(
                "an op log cannot hold this extra",
                where=f"{op.label}.{key}",
                value=value,
                expected="None, bool, int, finite float, str or a sequence of them",
            )
    return {
        "kind": op.kind,
        "operands": {key: handle.name for key, handle in op.operands.items()},
        "out": None if op.out is None else op.out.name,
        "extra": dict(op.extra),
        "scope": op.scope.value,
    }


def _plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_plain(item) for item in value)
    if isinstance(value, float):
        return abs(value) < float("inf")
    return value is None or isinstance(value, (bool, int, str))


def _command_record(command: PeCommand) -> JsonObject:
    match command:
        case CompositeCmd():
            return {
                "type": "composite",
                "name": command.name,
                "ops": [_op_record(op) for op in command.ops],
                "rw_handles": [handle.name for handle in command.rw_handles],
            }
        case DmaReadCmd() | DmaWriteCmd() | CopyCmd():
            kinds = {DmaReadCmd: "dma_read", DmaWriteCmd: "dma_write", CopyCmd: "copy"}
            return {
                "type": kinds[type(command)],
                "src": command.src.name,
                "dst": command.dst.name,
            }
        case GemmCmd():
            return {
                "type": "gemm",
                "a": command.a.name,
                "b": command.b.name,
                "out": command.out.name,
                "mkn": [command.m, command.k, command.n],
                "accumulate": command.accumulate,
            }
        case MathCmd():
            return {
                "type": "math",
                "op": command.op,
                "operands": [handle.name for handle in command.operands],
                "out": None if command.out is None else command.out.name,
                "axis": command.axis,
            }
        case PeCpuOverheadCmd():
            return {"type": "cpu", "cycles": command.cycles}


def read_command(body: JsonObject, tensors: dict[str, TensorHandle]) -> PeCommand:
    """The command of a record; tensors are found by name.

    Raises:
        KeyError: a tensor or a key is missing.
        ValueError: a value that cannot be.
    """

    def named(key: str) -> TensorHandle:
        return tensors[str(body[key])]

    def listed(key: str) -> tuple[TensorHandle, ...]:
        return tuple(tensors[name] for name in cast("list[str]", body[key]))

    kind = body["type"]
    if kind == "composite":
        ops = cast("list[JsonObject]", body["ops"])
        return CompositeCmd(
            tuple(_read_op(op, tensors) for op in ops),
            listed("rw_handles"),
            str(body["name"]),
        )
    if kind == "dma_read":
        return DmaReadCmd(named("src"), named("dst"))
    if kind == "dma_write":
        return DmaWriteCmd(named("src"), named("dst"))
    if kind == "copy":
        return CopyCmd(named("src"), named("dst"))
    if kind == "gemm":
        m, k, n = cast("list[int]", body["mkn"])
        accumulate = bool(body["accumulate"])
        return GemmCmd(named("a"), named("b"), named("out"), m, k, n, accumulate)
    if kind == "math":
        out = None if body["out"] is None else named("out")
        axis = cast("int | None", body["axis"])
        return MathCmd(str(body["op"]), listed("operands"), out, axis)
    if kind == "cpu":
        return PeCpuOverheadCmd(cast("int", body["cycles"]))
    raise ValueError(f"unknown command type {kind!r}")


def _read_op(body: JsonObject, tensors: dict[str, TensorHandle]) -> OpSpec:
    operands = cast("dict[str, str]", body["operands"])
    out = body["out"]
    return OpSpec(
        str(body["kind"]),
        {key: tensors[name] for key, name in operands.items()},
        None if out is None else tensors[str(out)],
        cast("dict[str, object]", body["extra"]),
        Scope(str(body["scope"])),
    )
