"""Attempts at a recurrence proof: cold, continued, paced.

Each attempt may use 64 generations of one event and ``16 (V + E)`` processed events
(scheduling spec, "Post-codegen instruction diagnostic"):

``cold``
    The spec's start.  Nearly all shallow pipelines recur within its limits.
``continued``
    The state in which the cold execution met its limits is a legal state like any
    other: it goes on from there, with the states seen so far.  What is proved is what
    the cold execution does in the long run.  Once, unless the caller asks for more;
    the paced execution below may go on as often.
``paced``
    The state in which everything waits for the critical cycle
    (:mod:`raptor_cp.periodic.paced_start`): the drift of faster parts is skipped.
    Contention can have several periodic regimes, so a regime found this way counts
    only if its interval is within one percent of what the cold execution shows; where
    no request ever waits there is only one.

Executions run on the contracted graph (:mod:`raptor_cp.periodic.contraction`); the
limits are those of the whole one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError, MalformedInput
from raptor_cp.periodic.contraction import contracted
from raptor_cp.periodic.dependency_order import TokenFreeCycle, topological_order
from raptor_cp.periodic.paced_start import paced
from raptor_cp.periodic.queue_engine import (
    MAX_GENERATIONS,
    Stop,
    TieOrder,
    TokenExecution,
    Window,
    WindowSearch,
    event_limit,
    time_range_fault,
    within_agreement,
)
from raptor_cp.periodic.recurrence import RecurrenceProof, Start, StateHistory
from raptor_cp.periodic.unavailable import Unavailable, ns_for_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raptor_cp.periodic.event_graph import EventGraph, Int32Array

#: Continuations of one analysis at most: generations count from -2**15 to 2**15.
MAX_CONTINUATIONS = 400
#: Completed generations from which a mean interval is taken.
_MEAN_GENERATIONS = 16


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt took, within its own limits."""

    start: Start
    processed_events: int
    generations: int

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports."""
        return {
            "start": self.start.value,
            "processed_events": self.processed_events,
            "generations": self.generations,
        }


@dataclass(frozen=True, slots=True)
class OrderAnalysis:
    """Queues and recurrence under one tie order.

    Parts of the graph that nothing couples are run apart; the slowest one decides.

    Attributes:
        window: the spec's estimate from agreeing windows.
        mean_interval_ns: mean interval of the slowest core over the later half of the
            completed generations; None if these are too few.  An estimate for what
            is neither periodic soon nor steady enough for windows.
        exact_interval_ns: interval of the proved recurrence, or why it is unproved.
        proofs: one for each part if all are proved, else empty.
        max_request_wait_ns: longest wait of a request, bootstrap included.
        attempts: what was tried, in this order.
        processed_events: most of one attempt, all parts together, at most
            ``16 (V + E)``.
        generations: most generations of one event in one attempt, at most 64.
        stored_bytes: stored states of the largest part.
    """

    order: TieOrder
    window: Window | Unavailable
    exact_interval_ns: Fraction | Unavailable
    proofs: tuple[RecurrenceProof, ...]
    max_request_wait_ns: int
    attempts: tuple[Attempt, ...]
    stored_bytes: int
    mean_interval_ns: Fraction | None

    @property
    def processed_events(self) -> int:
        """Most processed events of one attempt."""
        return max(attempt.processed_events for attempt in self.attempts)

    @property
    def generations(self) -> int:
        """Most generations of one event in one attempt."""
        return max(attempt.generations for attempt in self.attempts)

    @property
    def start(self) -> Start | None:
        """Where the last attempt began that a proof took; None without a proof."""
        tried = [attempt.start for attempt in self.attempts]
        return max(
            (proof.start for proof in self.proofs), key=tried.index, default=None
        )

    @property
    def recurrence_established(self) -> bool:
        """True when complete-state recurrence is proved for every part."""
        return isinstance(self.exact_interval_ns, Fraction)

    @property
    def interval_ns(self) -> Fraction | Unavailable:
        """The window mean; the exact interval where no windows agree."""
        if isinstance(self.window, Window):
            return self.window.interval_ns
        if isinstance(self.exact_interval_ns, Fraction):
            return self.exact_interval_ns
        return self.window

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports."""
        return {
            "tie_order": self.order.value,
            "interval_ns": ns_for_json(self.interval_ns),
            "window": self.window.to_dict(),
            "exact_interval_ns": ns_for_json(self.exact_interval_ns),
            "mean_interval_ns": (
                None
                if self.mean_interval_ns is None
                else ns_for_json(self.mean_interval_ns)
            ),
            "recurrence_established": self.recurrence_established,
            "start": None if self.start is None else self.start.value,
            "proofs": [proof.to_dict() for proof in self.proofs],
            "max_request_wait_ns": self.max_request_wait_ns,
            "attempts": [attempt.to_dict() for attempt in self.attempts],
        }


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A coupled part of a graph, ready to run.

    Attributes:
        graph: contracted.
        order: a topological order of it, None if it cannot be executed.
        limit: processed events of one attempt, from the part before contraction.
    """

    graph: EventGraph
    order: Int32Array | None
    limit: int

    @classmethod
    def of(cls, part: EventGraph) -> Part:
        """Contract a coupled part, if it is executable."""
        order = topological_order(part)
        if isinstance(order, TokenFreeCycle):
            return cls(part, None, event_limit(part))
        graph = contracted(part, order)
        if graph is not part:
            order = topological_order(graph)
            if isinstance(order, TokenFreeCycle):
                raise InternalError("contraction made a token-free cycle")
        return cls(graph, order, event_limit(part))


class _Execution:
    """One execution with its windows and its states."""

    def __init__(
        self, graph: EventGraph, order: TieOrder, limit: int, start: Start
    ) -> None:
        self.run = TokenExecution(graph, order, event_limit=limit)
        self.history = StateHistory(self.run, start=start)
        self.windows = WindowSearch(self.run)
        self.proof: RecurrenceProof | None = None
        self.window: Window | None = None
        self.attempts: list[Attempt] = []
        self.stop = Stop.CHECKPOINT

    @property
    def at_limit(self) -> bool:
        """Nothing is proved yet, and only the limits are in the way."""
        return (
            self.proof is None
            and not self.history.full
            and self.stop in (Stop.EVENT_LIMIT, Stop.GENERATION_LIMIT)
        )

    def attempt(self) -> None:
        """Run until the recurrence is proved and windows agree, or a limit is met.

        A proof also guards the windows: a pair that agrees by accident in a transient
        but lies more than one percent off the proved interval is passed over.
        """
        while True:
            self.stop = self.run.advance()
            if self.proof is None and self.stop is Stop.CHECKPOINT:
                self.proof = self.history.observe()
                if self.proof is not None:
                    self.check_window(self.proof.interval_ns)
            exact = self.proof.interval_ns if self.proof is not None else None
            if self.window is None:
                self.window = self.windows.search(exact)
            if self.stop is not Stop.CHECKPOINT or self._settled():
                break
        self.attempts.append(
            Attempt(
                self.history.start,
                self.run.attempt_events,
                self.run.attempt_generations,
            )
        )

    def extend(self) -> None:
        """Another attempt from here."""
        self.run.extend()
        if self.history.start is Start.COLD:
            self.history.start = Start.CONTINUED
        self.attempt()

    def extend_often(self, continuations: int) -> None:
        """Further attempts as long as only the limits are in the way.

        Without requests nothing can settle but by the drift that pacing skips.
        """
        if self.run.graph.request_count == 0:
            return
        for further in range(1, continuations + 1):
            generations = (1 + further) * MAX_GENERATIONS
            if not self.at_limit or time_range_fault(self.run.graph, generations):
                break
            self.extend()

    def check_window(self, interval: Fraction) -> None:
        """Give up a window that is more than one percent off."""
        if self.window and not within_agreement(self.window.interval_ns, interval):
            self.window = None

    def _settled(self) -> bool:
        if self.proof is None:
            return self.history.full and self.window is not None
        # All phases of the period have been tried once the search is beyond it.
        periodic = self.proof.transient_generations + self.proof.period_generations
        return self.window is not None or self.windows.next_generation > periodic

    def mean_interval_ns(self) -> Fraction | None:
        """Mean over the later half of the completed generations, slowest core."""
        last = self.run.completed_generations - 1
        if last < _MEAN_GENERATIONS:
            return None
        times = self.run.completion_times_ns()
        first = last // 2
        return Fraction(int((times[:, last] - times[:, first]).max()), last - first)


def analyse_parts(
    parts: Iterable[Part], order: TieOrder, continuations: int
) -> OrderAnalysis | Unavailable:
    """Windows and proofs of parts that run side by side, under one tie order.

    Raises:
        MalformedInput: ``continuations`` out of range.
    """
    if not 0 <= continuations <= MAX_CONTINUATIONS:
        raise MalformedInput(
            "bad number of continuations",
            value=continuations,
            expected=f"0 to {MAX_CONTINUATIONS}",
        )
    done: list[OrderAnalysis] = []
    for part in parts:
        answer = _analyse_part(part, order, continuations)
        if isinstance(answer, Unavailable):
            return answer
        done.append(answer)
    return done[0] if len(done) == 1 else _slowest(done, order)


def _analyse_part(
    part: Part, order: TieOrder, continuations: int
) -> OrderAnalysis | Unavailable:
    graph = part.graph
    fault = time_range_fault(graph, MAX_GENERATIONS)
    if fault is not None:
        return fault
    cold = _Execution(graph, order, part.limit, Start.COLD)
    cold.attempt()
    cold.extend_often(continuations)
    mean = cold.mean_interval_ns()
    proof, found = cold.proof, cold
    attempts = list(cold.attempts)
    refused = ""
    if cold.at_limit and part.order is not None:
        start = paced(graph, part.order)
        if start is not None:
            warm = _Execution(start, order, part.limit, Start.PACED)
            warm.attempt()
            warm.extend_often(continuations)
            attempts += warm.attempts
            if warm.proof is not None and _same_regime(warm, cold, mean):
                proof, found = warm.proof, warm
            elif warm.proof is not None:
                refused = (
                    "; the paced start leads to another regime, at "
                    f"{float(warm.proof.interval_ns):.0f} ns"
                )
    if proof is not None:
        cold.check_window(proof.interval_ns)
    elif mean is not None:
        cold.check_window(mean)
        if cold.window is None:
            cold.windows.next_generation = 0
            cold.window = cold.windows.search(mean)
    window = cold.window or found.window
    return OrderAnalysis(
        order=order,
        window=window if window is not None else Unavailable(_no_window(found)),
        exact_interval_ns=(
            proof.interval_ns
            if proof is not None
            else Unavailable(cold.history.why_unproved(cold.stop) + refused)
        ),
        proofs=(proof,) if proof is not None else (),
        max_request_wait_ns=max(
            cold.run.max_request_wait_ns, found.run.max_request_wait_ns
        ),
        attempts=tuple(attempts),
        stored_bytes=max(cold.history.stored_bytes, found.history.stored_bytes),
        mean_interval_ns=mean,
    )


def _same_regime(warm: _Execution, cold: _Execution, mean: Fraction | None) -> bool:
    """Whether the paced regime can stand for the cold execution's."""
    if warm.run.max_request_wait_ns == 0 and cold.run.max_request_wait_ns == 0:
        return True
    exact = None if warm.proof is None else warm.proof.interval_ns
    return mean is not None and exact is not None and within_agreement(mean, exact)


def _no_window(execution: _Execution) -> str:
    if execution.stop is Stop.CHECKPOINT:
        return "no windows agree within one percent of the proved interval"
    return f"no two adjacent windows agree: {execution.run.why(execution.stop)}"


def _slowest(parts: Sequence[OrderAnalysis], order: TieOrder) -> OrderAnalysis:
    """One answer for parts that run side by side."""
    exact: Fraction | Unavailable = Fraction(0)
    window: Window | Unavailable = Window(0, Fraction(0), ())
    for part in parts:
        exact = _larger(exact, part.exact_interval_ns)
        if isinstance(window, Window):
            if isinstance(part.window, Window):
                window = _joined(window, part.window)
            else:
                window = part.window
    means = [part.mean_interval_ns for part in parts]
    known = [mean for mean in means if mean is not None]
    proved = isinstance(exact, Fraction)
    return OrderAnalysis(
        order=order,
        window=window,
        exact_interval_ns=exact,
        proofs=tuple(p for part in parts for p in part.proofs) if proved else (),
        max_request_wait_ns=max(part.max_request_wait_ns for part in parts),
        attempts=_summed([a for part in parts for a in part.attempts]),
        stored_bytes=max(part.stored_bytes for part in parts),
        mean_interval_ns=max(known) if len(known) == len(means) else None,
    )


def _summed(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """One attempt for each start that some part took."""
    return tuple(
        Attempt(
            start,
            sum(a.processed_events for a in attempts if a.start is start),
            max(a.generations for a in attempts if a.start is start),
        )
        for start in Start
        if any(a.start is start for a in attempts)
    )


def _larger(
    left: Fraction | Unavailable, right: Fraction | Unavailable
) -> Fraction | Unavailable:
    if isinstance(left, Unavailable) or isinstance(right, Unavailable):
        return left if isinstance(left, Unavailable) else right
    return max(left, right)


def _joined(left: Window, right: Window) -> Window:
    waits = dict(left.core_waits_ns)
    for core, wait in right.core_waits_ns:
        waits[core] = waits.get(core, 0) + wait
    return Window(
        first_generation=max(left.first_generation, right.first_generation),
        interval_ns=max(left.interval_ns, right.interval_ns),
        core_waits_ns=tuple(sorted(waits.items())),
    )
