"""What to tell a kernel's author whose composite does not fit: the cheapest split.

Targets do not know solvers, so the two meet here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput, RaptorError
from raptor_cp.targets.pe.cost_model import CompositeTooLarge

if TYPE_CHECKING:
    from raptor_cp.models.fusion_problem import FusionPlan


def with_advice(error: RaptorError) -> RaptorError:
    """The error, with the cheapest split when it is a composite above the cap."""
    return advised(error) if isinstance(error, CompositeTooLarge) else error


def split_plan(error: CompositeTooLarge) -> FusionPlan:
    """The cheapest legal way to issue the operations of the refused composite."""
    from raptor_cp.models.command_fusion import propose_fusion

    composite = error.composite
    state = [handle.name for handle in composite.rw_handles]
    return propose_fusion(composite.ops, error.model, state=state)


def advised(error: CompositeTooLarge) -> MalformedInput:
    """The same error, with the cheapest split as its hint."""
    plan = split_plan(error)
    if plan.cycles is None:
        hint = f"no split is possible ({plan.proof})"
    else:
        parts = ", ".join(
            f"{'composite' if command.composite else 'single'} of"
            f" #{command.operations[0]}"
            + (f"..#{command.operations[-1]}" if len(command.operations) > 1 else "")
            + f" ({command.logical_bytes} bytes)"
            for command in plan.commands
        )
        hint = (
            f"advice: the cheapest legal split costs {float(plan.cycles):g} dispatch"
            f" cycles ({plan.verdict}; {plan.proof}): {parts};"
            " it is never split automatically"
        )
    return MalformedInput(error.what, where=error.where, hint=hint)
