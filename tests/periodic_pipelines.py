"""Event graphs of synthetic READY/FREE pipelines for the tests of the periodic
analysis."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from raptor_cp.periodic.event_graph import Access, EventGraph, EventGraphBuilder


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """What a synthetic pipeline looks like.

    Attributes:
        stages: pipeline depth.
        cores: most cores of one stage; each stage draws 1 to this many.
        release: one buffer, WAIT(FREE) before the stores; else two buffers, WAIT(FREE)
            between the stores and READY.
        skips: loads across more than one stage, in percent of the stages.
        service: service of all requests, in percent of the busiest core's work.
        spread: how much core work varies, in percent of its mean.
    """

    stages: int
    cores: int = 6
    release: bool = False
    skips: int = 0
    service: int = 60
    spread: int = 30


class _Core:
    """Appends the serial text of one core."""

    def __init__(self, builder: EventGraphBuilder, number: int) -> None:
        self.builder = builder
        self.number = number
        self.entry = builder.add_event(number, "entry", start_ns=3)
        self.last = self.entry
        self.switch = self.entry

    def step(self, kind: str, delay: int) -> int:
        event = self.builder.add_event(self.number, kind)
        self.builder.add_edge(self.last, event, delay)
        self.last = event
        return event

    def memory(self, access: Access, link: int, service: int, after: int) -> None:
        kind = "load" if access is Access.READ else "store"
        request = self.builder.add_request(self.number, kind, "memory", service, access)
        self.builder.add_edge(self.last, request, 1 + link)
        self.builder.add_edge(self.switch, request, link)
        self.switch = request
        self.last = self.step_after(request, after)

    def step_after(self, event: int, after: int) -> int:
        done = self.builder.add_event(self.number, "commit")
        self.builder.add_edge(event, done, after)
        return done

    def signal(self, hops: int) -> int:
        message = self.builder.add_event(self.number, "message")
        self.builder.add_edge(self.last, message, hops)
        self.builder.add_edge(self.switch, message, hops)
        self.switch = message
        self.step("sync", 4)
        return message

    def close(self) -> None:
        self.builder.add_edge(self.last, self.entry, 2, 1)
        self.builder.add_edge(self.switch, self.entry, 0, 1)
        self.builder.mark_completion(self.last)


def pipeline(shape: PipelineShape, seed: int) -> EventGraph:
    """A pipeline of the shape; the same seed gives the same graph."""
    rng = random.Random(seed)
    builder = EventGraphBuilder()
    sizes = [rng.randint(1, shape.cores) for _ in range(shape.stages)]
    total = sum(sizes)
    mean = rng.randint(5_000, 60_000)
    low = max(1, mean * (100 - shape.spread) // 100)
    high = mean * (100 + shape.spread) // 100
    work = [rng.randint(low, high) for _ in range(total)]
    cores = [_Core(builder, number) for number in range(total)]
    stage_of = [s for s, size in enumerate(sizes) for _ in range(size)]
    members = [
        [c for c in range(total) if stage_of[c] == s] for s in range(shape.stages)
    ]
    readers: list[list[int]] = [[] for _ in range(total)]
    loads = [rng.randint(1, 2) if stage_of[c] == 0 else 0 for c in range(total)]
    for stage in range(1, shape.stages):
        for reader in members[stage]:
            sources = rng.sample(
                members[stage - 1], rng.randint(1, len(members[stage - 1]))
            )
            for source in sources:
                readers[source].append(reader)
                loads[reader] += 1
            if stage > 1 and rng.randrange(100) < shape.skips:
                loads[reader] += rng.randint(1, 2)
        for source in members[stage - 1]:
            if not readers[source]:
                reader = rng.choice(members[stage])
                readers[source].append(reader)
                loads[reader] += 1
    stores = [rng.randint(1, 2) for _ in range(total)]
    requests = sum(loads) + sum(stores)
    service = max(work) * shape.service // 100
    share = [rng.randint(50, 150) for _ in range(requests)]
    parts = iter([max(1, service * part // sum(share)) for part in share])
    writers: list[list[int]] = [[] for _ in range(total)]
    for writer, found in enumerate(readers):
        for reader in found:
            writers[reader].append(writer)
    hops = [rng.randint(1, 30) for _ in range(total)]

    free_of: dict[int, list[tuple[int, int]]] = {c: [] for c in range(total)}
    for number, core in enumerate(cores):
        for writer in writers[number]:
            message = core.signal(1 + abs(hops[number] - hops[writer]))
            free_of[writer].append((message, 1))
    ready_of: dict[int, list[int]] = {c: [] for c in range(total)}
    for stage in range(shape.stages):
        inside = members[stage]
        for number in inside:
            core = cores[number]
            if writers[number]:
                wait = core.step("wait", 3)
                for event in ready_of[number]:
                    builder.add_edge(event, wait, 2)
            for _ in range(loads[number]):
                core.memory(Access.READ, hops[number], next(parts), rng.randint(5, 80))
        pieces = [rng.randint(1, 4) for _ in inside]
        # A message chain through the cores of the stage, both ends blocking.
        for number, count in zip(inside, pieces, strict=True):
            for _ in range(count):
                cores[number].step("work", work[number] // count)
            builder.add_core_work(number, work[number])
        for left, right in itertools.pairwise(inside):
            if rng.random() < 0.5:
                send = cores[left].step("send", 9)
                receive = cores[right].step("receive", 9)
                builder.add_edge(send, receive, rng.randint(5, 60))
                cores[right].step("work", rng.randint(1, max(1, work[right] // 20)))
        for number in inside:
            core = cores[number]

            def wait_free(core: _Core = core, number: int = number) -> None:
                if free_of[number]:
                    wait = core.step("wait", 3)
                    for event, delay in free_of[number]:
                        builder.add_edge(event, wait, delay)

            if shape.release:
                wait_free()
            for _ in range(stores[number]):
                core.memory(Access.WRITE, hops[number], next(parts), rng.randint(2, 9))
            if not shape.release:
                wait_free()
            for reader in readers[number]:
                ready_of[reader].append(
                    core.signal(1 + abs(hops[number] - hops[reader]))
                )
            core.close()
    return builder.build()
