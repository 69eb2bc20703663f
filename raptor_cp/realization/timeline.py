"""What a plan does in the steady state: slices of every core and every queue.

The event graph is executed for as many generations as the proof of its recurrence
needs, and a few more, so that all cores, which work on different inferences at the
same time, are inside what was executed.  The window shown ends when the core that is
furthest behind has finished; it is a whole period where the period is short.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.graph.compute_graph import BaselineKind
from raptor_cp.periodic.queue_engine import TieOrder, execute
from raptor_cp.periodic.timeline import SliceKind, Timeline, Track, TrackKind
from raptor_cp.realization.plan import Load, Receive, Run, Send, Signal, Store, Wait
from raptor_cp.units import ceil_div
from raptor_cp.verdict import Unavailable

if TYPE_CHECKING:
    from raptor_cp.periodic.analysis import OrderAnalysis, PeriodicAnalysis
    from raptor_cp.periodic.queue_engine import Execution
    from raptor_cp.realization.events import PlanEvents
    from raptor_cp.realization.plan import ExecutionPlan, Item

Int64Array = NDArray[np.int64]

#: Generations shown at most; longer periods are cut.
MAX_SHOWN = 4
#: Generations executed beyond the transient, the window and one for each stage.
MARGIN = 8
#: Bytes of recorded times of one execution.
MAX_RECORDED_BYTES = 2**28

_KINDS = tuple(SliceKind)


def steady_timeline(
    plan: ExecutionPlan, events: PlanEvents, analysis: PeriodicAnalysis
) -> Timeline | Unavailable:
    """The steady state under the first tie order (event index).

    Args:
        plan: a plan that passed its checks.
        events: its events.
        analysis: of these events; where it has no interval there is no timeline.
    """
    first = analysis.orders[0]
    if isinstance(first, Unavailable):
        return first
    transient, period, interval, proved = 0, 1, first.interval_ns, False
    if first.proofs and not isinstance(first.exact_interval_ns, Unavailable):
        slowest = max(first.proofs, key=lambda proof: proof.interval_ns)
        transient = max(proof.transient_generations for proof in first.proofs)
        period, interval = slowest.period_generations, slowest.interval_ns
        proved = _is_from_cold(first)
    if isinstance(interval, Unavailable):
        return interval
    shown = min(period, MAX_SHOWN)
    stages = max((text.stage for text in plan.cores), default=0) + 1
    wanted = transient + shown + stages + MARGIN
    affordable = MAX_RECORDED_BYTES // (16 * events.graph.event_count)
    generations = max(min(wanted, affordable), shown + 1)
    run = execute(events.graph, TieOrder.EVENT_INDEX, generations=generations)
    if isinstance(run, Unavailable):
        return run
    if not run.completed:
        return Unavailable("an event waits for ever")
    end = int(run.finish_ns[events.graph.completion, generations - 1].min())
    window = max(1, round(shown * interval))
    return _Drawing(plan, events, run, max(0, end - window), end).timeline(
        shown, proved=proved and generations == wanted and shown == period
    )


def single_timeline(plan: ExecutionPlan, events: PlanEvents) -> Timeline | Unavailable:
    """One inference alone, from a cold start to the end of its last event."""
    run = execute(events.graph, TieOrder.EVENT_INDEX, generations=1)
    if isinstance(run, Unavailable):
        return run
    if not run.completed:
        return Unavailable("an event waits for ever")
    return _Drawing(plan, events, run, 0, run.makespan_ns).timeline(1, proved=True)


def _is_from_cold(order: OrderAnalysis) -> bool:
    return all(proof.start.value != "paced" for proof in order.proofs)


@dataclass(slots=True)
class _Slices:
    """Columns that grow; one entry of each list is an array over generations."""

    track: list[Int64Array]
    start: list[Int64Array]
    end: list[Int64Array]
    kind: list[Int64Array]
    generation: list[Int64Array]
    label: list[Int64Array]
    #: what a slice moves: (-1) nothing, else a number shared by both ends
    sent: list[Int64Array]
    got: list[Int64Array]


class _Drawing:
    """One execution between two moments."""

    def __init__(
        self,
        plan: ExecutionPlan,
        events: PlanEvents,
        run: Execution,
        begin: int,
        end: int,
    ) -> None:
        self._plan, self._events, self._run = plan, events, run
        self._begin, self._end = begin, end
        self._graph = plan.schedule.problem.graph
        self._labels: dict[str, int] = {}
        self._slices = _Slices([], [], [], [], [], [], [], [])
        self._moves: dict[tuple[str, int], int] = {}
        self._switches: dict[int, list[tuple[Int64Array, Int64Array, int]]] = {}

    def timeline(self, shown: int, *, proved: bool) -> Timeline:
        """Everything between the two moments."""
        tracks = [
            Track(f"core {text.core}", TrackKind.CORE, text.core)
            for text in self._plan.cores
        ]
        for row, text in enumerate(self._plan.cores):
            self._core(row, text.core, text.items)
        for core, messages in self._switches.items():
            row = len(tracks)
            tracks.append(Track(f"switch of core {core}", TrackKind.SWITCH, core))
            for start, end, label in messages:
                self._add(
                    row, start, end, SliceKind.SERVICE, np.arange(len(start)), label
                )
        memory = len(tracks)
        requests = np.flatnonzero(self._events.graph.server >= 0)
        counters = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        if requests.size:
            tracks.append(Track("shared memory", TrackKind.MEMORY, -1))
            counters = self._memory(memory, requests)
        return self._finished(tuple(tracks), memory, counters, shown, proved=proved)

    def _label(self, text: str) -> int:
        return self._labels.setdefault(text, len(self._labels))

    def _add(
        self,
        track: int,
        start: Int64Array,
        end: Int64Array,
        kind: SliceKind,
        generation: Int64Array,
        label: int,
        *,
        sent: int = -1,
        got: int = -1,
    ) -> None:
        inside = (end > self._begin) & (start < self._end) & (end > start)
        size = int(inside.sum())
        if not size:
            return
        rows = self._slices
        rows.track.append(np.full(size, track, np.int64))
        rows.start.append(start[inside])
        rows.end.append(end[inside])
        rows.kind.append(np.full(size, _KINDS.index(kind), np.int64))
        rows.generation.append(generation[inside])
        rows.label.append(np.full(size, label, np.int64))
        rows.sent.append(np.full(size, sent, np.int64))
        rows.got.append(np.full(size, got, np.int64))

    def _core(self, row: int, core: int, items: tuple[Item, ...]) -> None:
        """The text of one core in the generations that touch the window."""
        ready, finish = self._run.ready_ns, self._run.finish_ns
        times = self._events.times
        entry = finish[self._events.entries[row]]
        after = np.append(entry[1:], np.iinfo(np.int64).max)
        chosen = np.flatnonzero((after > self._begin) & (entry < self._end))
        if not chosen.size:
            return
        at = entry[chosen]
        firsts = self._events.first_events[row]
        for item, event in zip(items, firsts, strict=True):
            sent = got = -1
            if isinstance(item, Run):
                busy = sum(times.run(task, core) for task in item.tasks)
                end, kind, label = at + busy, SliceKind.RUN, self._run_label(item)
                waits = ""
            elif isinstance(item, Load | Store):
                end, busy = self._access(core, item, event, chosen)
                reading = isinstance(item, Load)
                kind = SliceKind.LOAD if reading else SliceKind.STORE
                label, waits = self._access_label(item), "shared memory"
                sent, got = self._moved(item)
            elif isinstance(item, Send | Receive):
                direct = self._plan.direct[item.direct]
                time = times.direct(direct)
                name = self._moved_name(direct.publication)
                number = self._move("direct", item.direct)
                if isinstance(item, Send):
                    busy = time.send_before_ns + time.send_after_ns
                    end = finish[event, chosen] + time.send_after_ns
                    kind, sent = SliceKind.SEND, number
                    label = f"{name} to core {direct.destination}"
                    waits = f"core {direct.destination}"
                    self._message(
                        core, finish[event], time.hold_ns, f"to {waits}", before=False
                    )
                else:
                    busy = time.receive_before_ns + time.receive_after_ns
                    end = finish[event, chosen] + time.receive_after_ns
                    kind, got = SliceKind.RECEIVE, number
                    label = f"{name} from core {direct.source}"
                    waits = f"core {direct.source}"
            elif isinstance(item, Signal):
                signal = times.signal(core, item.core)
                busy = signal.after_ns
                end, kind, waits = at + busy, SliceKind.SIGNAL, ""
                label = f"{item.purpose} to core {item.core}"
                self._message(core, finish[event], signal.hold_ns, label, before=False)
            else:
                end = finish[event, chosen]
                busy, kind, waits = 0, SliceKind.WAIT, ""
                label = f"wait for {item.purpose}"
            if isinstance(item, Load | Store):
                time_of = times.read if isinstance(item, Load) else times.write
                size = ceil_div(item.size, item.runs)
                requests = min(item.runs, self._events.request_cap)
                for request in range(event, event + requests):
                    self._message(
                        core,
                        ready[request],
                        time_of(core, size).message_ns,
                        "to shared memory",
                        before=True,
                    )
            if isinstance(item, Wait):
                self._add(row, at, end, kind, chosen, self._label(label))
            else:
                begin = np.maximum(end - busy, at)
                if waits:
                    self._add(
                        row, at, begin, SliceKind.WAIT, chosen,
                        self._label(f"wait for {waits}"),
                    )  # fmt: skip
                self._add(
                    row, begin, end, kind, chosen, self._label(label),
                    sent=sent, got=got,
                )  # fmt: skip
            at = end

    def _access(
        self, core: int, item: Load | Store, event: int, chosen: Int64Array
    ) -> tuple[Int64Array, int]:
        """End of an access in each generation, and how long it takes unhindered."""
        times = self._events.times
        size = ceil_div(item.size, item.runs)
        one = (times.read if isinstance(item, Load) else times.write)(core, size)
        cycle = one.before_ns + one.after_ns
        requests = min(item.runs, self._events.request_cap)
        last_stands_for = item.runs // requests
        last = self._run.finish_ns[event + requests - 1, chosen]
        end = last + one.after_ns + (last_stands_for - 1) * cycle
        return end, item.runs * (cycle + one.service_ns)

    def _message(
        self, core: int, moment: Int64Array, length: int, label: str, *, before: bool
    ) -> None:
        """The switch of a core is busy before or after a moment of each generation."""
        if length <= 0:
            return
        start = moment - length if before else moment
        self._switches.setdefault(core, []).append(
            (start, start + length, self._label(label))
        )

    def _memory(self, row: int, requests: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Services of the shared memory; moments and lengths of its queue."""
        graph, run = self._events.graph, self._run
        arrival, finish = run.ready_ns[requests], run.finish_ns[requests]
        start = finish - graph.service_ns[requests][:, None]
        for number, event in enumerate(requests.tolist()):
            kind = graph.kind_labels[graph.kind[event]]
            self._add(
                row,
                start[number],
                finish[number],
                SliceKind.SERVICE,
                np.arange(finish.shape[1]),
                self._label(f"{kind} of core {graph.core[event]}"),
            )
        moments = np.concatenate([arrival.ravel(), start.ravel()])
        steps = np.concatenate([np.ones(arrival.size), -np.ones(start.size)])
        order = np.argsort(moments, kind="stable")
        moments, length = moments[order], np.cumsum(steps[order]).astype(np.int64)
        last = np.append(moments[1:] != moments[:-1], True)
        moments, length = moments[last], length[last]
        moments = np.maximum(moments, self._begin)
        kept = (moments < self._end) & np.append(moments[1:] != moments[:-1], True)
        moments, length = moments[kept] - self._begin, length[kept]
        changed = np.append(True, length[1:] != length[:-1])[: len(length)]
        return moments[changed], length[changed]

    def _finished(
        self,
        tracks: tuple[Track, ...],
        memory: int,
        counters: tuple[Int64Array, Int64Array],
        shown: int,
        *,
        proved: bool,
    ) -> Timeline:
        rows = self._slices
        track, start, end, kind, generation, label, sent, got = (
            np.concatenate(column) if column else np.zeros(0, np.int64)
            for column in (
                rows.track, rows.start, rows.end, rows.kind, rows.generation,
                rows.label, rows.sent, rows.got,
            )
        )  # fmt: skip
        start = np.maximum(start, self._begin) - self._begin
        end = np.minimum(end, self._end) - self._begin
        order = np.lexsort((end, start, track))
        track, start, end, kind, generation, label, sent, got = (
            column[order]
            for column in (track, start, end, kind, generation, label, sent, got)
        )
        # Neighbours that say the same are one slice.
        same = np.zeros(len(track), np.bool_)
        if len(track) > 1:
            same[1:] = (
                (track[1:] == track[:-1])
                & (start[1:] == end[:-1])
                & (kind[1:] == kind[:-1])
                & (label[1:] == label[:-1])
                & (generation[1:] == generation[:-1])
            )
        kept = np.flatnonzero(~same)
        number = np.cumsum(~same) - 1
        ends = np.zeros(len(kept), np.int64)
        np.maximum.at(ends, number, end)
        flows = _flows(sent, got, generation, number)
        if generation.size:
            generation = generation - int(generation.min())
        moments, lengths = counters
        return Timeline(
            tracks=tracks,
            labels=tuple(self._labels),
            track=track[kept].astype(np.int32),
            start_ns=start[kept],
            duration_ns=ends - start[kept],
            kind=kind[kept].astype(np.int32),
            generation=generation[kept].astype(np.int32),
            label=label[kept].astype(np.int32),
            flow_source=flows[0].astype(np.int32),
            flow_target=flows[1].astype(np.int32),
            counter_track=np.full(len(moments), memory, np.int32),
            counter_ns=moments,
            counter_value=lengths.astype(np.int32),
            window_ns=self._end - self._begin,
            interval_ns=float(Fraction(self._end - self._begin, shown)),
            generations=shown,
            proved=proved,
        )

    def _run_label(self, item: Run) -> str:
        graph = self._graph
        first, last = item.tasks[0], item.tasks[-1]
        name = graph.operations[int(graph.task_operation[first])]
        lanes = int(graph.task_lane[first]), int(graph.task_lane[last])
        if lanes[0] == lanes[1]:
            return f"{name} lane {lanes[0]}"
        return f"{name} lanes {lanes[0]}..{lanes[1]}"

    def _moved_name(self, publication: int | None) -> str:
        if publication is None:
            return "edge"
        graph = self._graph
        producer = graph.publications[publication].producer
        return graph.operations[int(graph.task_operation[producer])]

    def _access_label(self, item: Load | Store) -> str:
        if item.baseline is not None:
            kind = self._graph.baseline[item.baseline].kind
            return {
                BaselineKind.INPUT: "network input",
                BaselineKind.OUTPUT: "network output",
            }.get(kind, "constants")
        if isinstance(item, Store):
            return self._moved_name(item.publication)
        if item.transfer is None:
            return "edge"
        return self._moved_name(self._graph.transfers[item.transfer].publication)

    def _moved(self, item: Load | Store) -> tuple[int, int]:
        """Numbers of what a store sends and a load gets through shared memory."""
        if isinstance(item, Store):
            if item.publication is None:
                return -1, -1
            return self._move("publication", item.publication), -1
        if item.transfer is None:
            return -1, -1
        publication = self._graph.transfers[item.transfer].publication
        return -1, self._move("publication", publication)

    def _move(self, kind: str, number: int) -> int:
        return self._moves.setdefault((kind, number), len(self._moves))


def _flows(
    sent: Int64Array, got: Int64Array, generation: Int64Array, number: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Slices at both ends of what is moved; every getter has one sender."""
    senders = {
        (int(sent[row]), int(generation[row])): int(number[row])
        for row in np.flatnonzero(sent >= 0)
    }
    pairs: list[tuple[int, int]] = []
    for row in np.flatnonzero(got >= 0):
        source = senders.get((int(got[row]), int(generation[row])))
        if source is not None:
            pairs.append((source, int(number[row])))
    array = np.array(sorted(set(pairs)), np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]
