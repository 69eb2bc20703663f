"""What issuing a command costs the CPU: ``FIXED(type) + logical_bytes * R``.

Dispatch-cost spec, D1 and D8: a composite pays the general control-path cost,
every single-op command a lighter one, both pay for the bytes they write into the
queue.  All of it is in cycles, as exact rationals; the clock belongs to the
element (:mod:`raptor_cp.targets.pe.topology`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.commands import CompositeCmd, PeCommand, PeCpuOverheadCmd
from raptor_cp.targets.pe.knobs import reject_unknown_keys


class CompositeTooLarge(MalformedInput):
    """A composite does not fit the scheduler's descriptor (spec, D7).

    Attributes:
        composite: the command.
        model: the cost model with the cap.
    """

    def __init__(
        self, composite: CompositeCmd, model: PeCostModel, where: str = ""
    ) -> None:
        self.composite, self.model = composite, model
        cap = model.max_composite_logical_bytes
        largest = sorted(
            enumerate(composite.ops), key=lambda item: (-item[1].logical_bytes, item[0])
        )[:3]
        listed = ", ".join(
            f"#{index} {op.label} ({op.logical_bytes} bytes)" for index, op in largest
        )
        super().__init__(
            f"composite {composite.name!r} has {composite.logical_bytes} logical bytes"
            f" in {len(composite.ops)} operations, the cap is {cap} bytes;"
            f" its largest operations: {listed or 'none'}",
            where=where,
            hint="split it into smaller composites; it is never split automatically",
        )


@dataclass(frozen=True, slots=True)
class PeCostModel:
    """Knobs of the dispatch formula (``pe_cost_model:`` of a topology).

    Args:
        fixed_per_cmd_cycles: cycles of a composite, whatever its size.
        fixed_per_single_op_cmd_cycles: the same for every other command.
        byte_cycles_recip: R, cycles for each logical byte.
        max_composite_logical_bytes: cap of a composite, bytes.

    Raises:
        MalformedInput: a knob is negative, not finite or not a number.
    """

    fixed_per_cmd_cycles: Fraction = Fraction(40)
    fixed_per_single_op_cmd_cycles: Fraction = Fraction(8)
    byte_cycles_recip: Fraction = Fraction(1, 16)
    max_composite_logical_bytes: int = 1024

    def __post_init__(self) -> None:
        for knob, value in _checked(self.knobs(), "pe_cost_model").items():
            object.__setattr__(self, knob, value)

    def knobs(self) -> dict[str, Fraction | int]:
        """Every knob by its name in a topology file."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_mapping(
        cls, knobs: Mapping[str, object] | None, *, where: str = "pe_cost_model"
    ) -> PeCostModel:
        """The model of a ``pe_cost_model:`` block; absent keys keep defaults.

        Raises:
            MalformedInput: an unknown key (the nearest legal one is named) or a
                bad value.
        """
        if knobs is None:
            return cls()
        if not isinstance(knobs, Mapping):
            raise MalformedInput("not a mapping", where=where, value=knobs)
        reject_unknown_keys(knobs, [f.name for f in fields(cls)], where=where)
        # Checked here too, so that the message says where the file has it.
        return cls(**_checked(knobs, where))  # type: ignore[arg-type]

    def fixed_cycles(self, command: PeCommand) -> Fraction:
        """The part of the dispatch that does not depend on size, cycles."""
        if isinstance(command, PeCpuOverheadCmd):
            return Fraction(0)
        if isinstance(command, CompositeCmd):
            return self.fixed_per_cmd_cycles
        return self.fixed_per_single_op_cmd_cycles

    def byte_cycles(self, command: PeCommand) -> Fraction:
        """The part of the dispatch that pays for bytes, cycles."""
        if isinstance(command, PeCpuOverheadCmd):
            return Fraction(0)
        return command.logical_bytes * self.byte_cycles_recip

    def dispatch_cycles(self, command: PeCommand) -> Fraction:
        """Cycles the CPU spends on issuing ``command``; 0 for explicit overhead.

        >>> from raptor_cp.targets.pe.commands import OpSpec, TensorHandle
        >>> a, b, c = (TensorHandle(name, (8, 8)) for name in "abc")
        >>> gemm = OpSpec("gemm", {"a": a, "b": b}, c, {"m": 8, "k": 8, "n": 8})
        >>> command = CompositeCmd((gemm,), (c,))
        >>> command.logical_bytes, float(PeCostModel().dispatch_cycles(command))
        (54, 43.375)
        """
        return self.fixed_cycles(command) + self.byte_cycles(command)

    def check_cap(self, command: PeCommand, *, where: str = "") -> None:
        """Refuse a composite above the cap.

        Raises:
            CompositeTooLarge: a ``ValueError``; the command is never split.
        """
        cap = self.max_composite_logical_bytes
        if isinstance(command, CompositeCmd) and command.logical_bytes > cap:
            raise CompositeTooLarge(command, self, where)


@dataclass(frozen=True, slots=True)
class Charge:
    """CPU cycles of one command: by formula, or explicit."""

    fixed_cycles: Fraction
    byte_cycles: Fraction
    explicit_cycles: Fraction

    @property
    def dispatch_cycles(self) -> Fraction:
        """What the formula charges."""
        return self.fixed_cycles + self.byte_cycles

    @property
    def cpu_cycles(self) -> Fraction:
        """What the CPU is busy for."""
        return self.dispatch_cycles + self.explicit_cycles


def charge(model: PeCostModel, command: PeCommand) -> Charge:
    """The one place where a command is priced, for live and replayed kernels.

    Raises:
        CompositeTooLarge: a composite above the cap.
    """
    model.check_cap(command)
    explicit = command.cycles if isinstance(command, PeCpuOverheadCmd) else 0
    return Charge(
        model.fixed_cycles(command), model.byte_cycles(command), Fraction(explicit)
    )


def _checked(knobs: Mapping[str, object], where: str) -> dict[str, Fraction | int]:
    checked: dict[str, Fraction | int] = {}
    for knob, value in knobs.items():
        if knob != "max_composite_logical_bytes":
            checked[knob] = exact_number(value, knob, where=where)
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise MalformedInput(
                "the cap is not a positive whole number",
                where=f"{where}.{knob}",
                value=value,
                expected="bytes",
            )
        else:
            checked[knob] = value
    return checked


def exact_number(value: object, what: str, *, where: str = "pe_cost_model") -> Fraction:
    """``value`` as an exact non-negative rational; 0.1 means one tenth.

    Raises:
        MalformedInput: not a finite, non-negative number (a bool is none).
    """
    if isinstance(value, Fraction):
        exact = value
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MalformedInput(
            "not a number", where=f"{where}.{what}", value=value, expected="a number"
        )
    elif not math.isfinite(value):
        raise MalformedInput(
            "not a finite number", where=f"{where}.{what}", value=value
        )
    else:
        # repr gives the shortest decimal, which is what the user wrote.
        exact = Fraction(repr(value))
    if exact < 0:
        raise MalformedInput("cannot be negative", where=f"{where}.{what}", value=value)
    return exact
