"""Why nothing fits, as data: what is needed, what is there, what a user can change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Infeasibility:
    """A proof that no schedule exists.

    Attributes:
        reason: one sentence.
        proof: how it is known (``counting bound``, ``CP-SAT, confirmed: ...``).
        slots_needed: weight slots that the conflicting operations need.
        slots_available: weight slots there are for them.
        operations: (operation, weight slots) of the conflict, largest first.
        levers: what would help, one sentence each.
    """

    reason: str
    proof: str
    slots_needed: int
    slots_available: int
    operations: tuple[tuple[str, int], ...] = ()
    levers: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Plain data for reports."""
        return {
            "reason": self.reason,
            "proof": self.proof,
            "slots_needed": self.slots_needed,
            "slots_available": self.slots_available,
            "operations": [
                {"operation": name, "slots": slots} for name, slots in self.operations
            ],
            "levers": list(self.levers),
        }

    def sentences(self) -> list[str]:
        """The explanation as a person reads it."""
        lines = [
            self.reason,
            f"weight slots needed: {self.slots_needed:,}; there are: "
            f"{self.slots_available:,} ({self.proof})",
        ]
        if self.operations:
            shown = ", ".join(f"{n} ({s:,})" for n, s in self.operations[:8])
            more = len(self.operations) - 8
            lines.append(
                f"operations: {shown}" + (f" and {more} more" if more > 0 else "")
            )
        lines.extend(f"lever: {lever}" for lever in self.levers)
        return lines
