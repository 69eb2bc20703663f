"""What raptor-cp raises.

::

    RaptorError                 base of everything below; carries ``exit_code``
    |-- MalformedInput          the user's file, option or value is wrong     (exit 2)
    |-- Infeasible              proved: no schedule exists                    (exit 1)
    |-- Unresolved              a budget is spent or timing is unproved       (exit 3)
    `-- InternalError           a bug of ours: an invariant does not hold     (exit 4)

A verdict that is part of a normal answer (FEASIBLE, UNKNOWN, ...) is data
(:class:`raptor_cp.verdict.Verdict`), not an exception; ``Infeasible`` and
``Unresolved`` are for calls that have nothing else to return.
"""

from __future__ import annotations


class RaptorError(Exception):
    """Base class; ``exit_code`` is what the command line returns."""

    exit_code: int = 4


class MalformedInput(RaptorError, ValueError):
    """Input that cannot mean anything: one sentence for the user.

    Args:
        what: what is wrong, without a final full stop.
        where: file, line or key path; empty when there is none.
        value: the offending value, shown with ``repr`` (omitted when absent).
        expected: what would have been right.
        hint: what to do about it.
    """

    exit_code = 2

    _ABSENT = object()

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        value: object = _ABSENT,
        expected: str = "",
        hint: str = "",
    ) -> None:
        self.what, self.where, self.expected, self.hint = what, where, expected, hint
        self.value = value
        text = f"{where}: {what}" if where else what
        if value is not self._ABSENT:
            text += f" (got {_shortened(value)})"
        if expected:
            text += f"; expected {expected}"
        if hint:
            text += f"; {hint}"
        super().__init__(text)


class Infeasible(RaptorError):
    """Proved: the demand cannot be met by the chip."""

    exit_code = 1


class Unresolved(RaptorError):
    """A bounded search or an analysis ended without an answer."""

    exit_code = 3


class InternalError(RaptorError):
    """An invariant of ours is broken; please report it."""

    exit_code = 4


def _shortened(value: object, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
