"""Command lists written in a scenario: ``tasks[].commands``.

The records are those of an op log: a tensor is declared before its first use, every
other record is a command::

    commands:
      - tensor: {name: k, shape: [128, 128], space: hbm}
      - tensor: {name: kt, shape: [128, 128]}
      - {type: dma_read, src: k, dst: kt}
      - {type: cpu, cycles: 12}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.knobs import reject_unknown_keys
from raptor_cp.targets.pe.op_log import read_command, read_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raptor_cp.targets.pe.commands import PeCommand, TensorHandle

_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "composite": (("ops",), ("name", "rw_handles")),
    "dma_read": (("src", "dst"), ()),
    "dma_write": (("src", "dst"), ()),
    "copy": (("src", "dst"), ()),
    "gemm": (("a", "b", "out", "mkn"), ("accumulate",)),
    "math": (("op", "operands"), ("out", "axis")),
    "cpu": (("cycles",), ()),
}
_DEFAULTS: dict[str, dict[str, object]] = {
    "composite": {"name": "composite", "rw_handles": ()},
    "gemm": {"accumulate": False},
    "math": {"out": None, "axis": None},
}
_TENSOR_DEFAULTS: dict[str, object] = {"dtype": "f16", "space": "tcm"}
_OP_DEFAULTS: dict[str, object] = {
    "operands": {},
    "out": None,
    "extra": {},
    "scope": "tile",
}


def read_commands(
    records: Sequence[Mapping[str, object]], where: str
) -> tuple[PeCommand, ...]:
    """The commands of a list of records.

    Raises:
        MalformedInput: names the record, the key and the nearest legal key.
    """
    tensors: dict[str, TensorHandle] = {}
    commands: list[PeCommand] = []
    for number, record in enumerate(records):
        place = f"{where}.{number}"
        try:
            if "tensor" in record:
                reject_unknown_keys(record, ["tensor"], where=place)
                body = _filled(
                    record["tensor"], _TENSOR_DEFAULTS, place, ("name", "shape")
                )
                tensors[str(body["name"])] = read_tensor(body)
            else:
                commands.append(read_command(_command(record, place), tensors))
        except KeyError as missing:
            raise MalformedInput(
                f"no tensor {missing} was declared before", where=place
            ) from missing
        except (TypeError, ValueError) as problem:
            if isinstance(problem, MalformedInput) and problem.where.startswith(place):
                raise
            raise MalformedInput(str(problem), where=place) from problem
    return tuple(commands)


def _command(record: Mapping[str, object], where: str) -> dict[str, object]:
    kind = record.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise MalformedInput(
            "unknown command type",
            where=f"{where}.type",
            value=kind,
            expected=f"tensor, or one of {', '.join(_KEYS)}",
        )
    needed, optional = _KEYS[kind]
    body = _filled(
        record, _DEFAULTS.get(kind, {}), where, ("type", *needed), optional=optional
    )
    if kind == "composite":
        ops = body["ops"]
        if not isinstance(ops, (list, tuple)):
            raise MalformedInput("not a list", where=f"{where}.ops", value=ops)
        body["ops"] = [
            _filled(op, _OP_DEFAULTS, f"{where}.ops.{i}", ("kind",))
            for i, op in enumerate(ops)
        ]
    return body


def _filled(
    data: object,
    defaults: Mapping[str, object],
    where: str,
    needed: tuple[str, ...],
    *,
    optional: tuple[str, ...] = (),
) -> dict[str, object]:
    if not isinstance(data, Mapping):
        raise MalformedInput("not a mapping", where=where, value=data)
    given = cast("Mapping[str, object]", data)
    reject_unknown_keys(given, [*needed, *optional, *defaults], where=where)
    for key in needed:
        if key not in given:
            raise MalformedInput("is missing", where=f"{where}.{key}")
    return {**defaults, **given}
