"""Random programs for the PIM chip, and an oracle that times them.

The oracle executes instructions core by core with the formulas written out once
more, for a clock of 1 ns; it knows nothing of event graphs.  Cores are generators
that block on messages and on the global memory; the memory serves the earliest
arrival once every core is blocked, ties by core number or its reverse.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

    from raptor_cp.targets.pim.config import PimConfig

Document = dict[str, Any]
Step = tuple[str, Any, int]
ZERO = {"offset_value": 0, "offset_select": 0}
TWO = {"vvadd", "vvsub", "vvmul", "vvdmul", "vvmax", "vvsll", "vvsra"}
WIDE = {"vvmul", "vvsll", "vvsra", "vtanh", "vsigm", "vrsu", "vrsl"}
VECTORS = sorted(TWO | WIDE | {"vavg", "vrelu", "vmv"})
SLOTS = {"sldi", "sld", "sadd", "ssub", "smul", "saddi", "smuli", "setbw"}
SIZES = [1, 8, 64, 65, 300, 1000]


def random_program(
    seed: int, *, steps: int = 25, cores: int = 5, memory: bool = True
) -> Document:
    """A deadlock-free program: one linear order of all communication.

    Every pair of neighbouring cores is coupled by a signal each way, so that event
    registers cannot run away over generations.
    """
    choose = random.Random(seed)
    count = choose.randint(1, cores)
    text: list[list[Document]] = [
        [
            {
                "op": "setbw",
                "ibiw": choose.choice([8, 16]),
                "obiw": choose.choice([8, 16, 32]),
            }
        ]
        for _ in range(count)
    ]
    registers = [0] * count

    def slots(core: int) -> None:
        for _ in range(choose.choice([0, 0, 1, 2, 3])):
            text[core].append({"op": "sldi", "rd": 1, "imm": choose.randint(0, 99)})

    def signal(source: int, target: int, number: int) -> None:
        register = registers[target]
        for _ in range(number):
            text[source].append(
                {"op": "sync", "core": target, "event_register": register}
            )
        text[target].append(
            {"op": "wait", "event_register": register, "wait_value": number}
        )
        registers[target] += 1

    for _ in range(choose.randint(1, steps)):
        core, dice = choose.randrange(count), choose.random()
        slots(core)
        size = choose.choice(SIZES)
        base = {"rd": 0, "rs1": 1, "rs2": 2}
        if dice < 0.25:
            op = choose.choice(VECTORS)
            text[core].append({"op": op, **base, "len": size, "offset": ZERO})
        elif dice < 0.33:
            group = choose.randint(0, 1)
            text[core].append({"op": "mvmul", **base, "mbiw": 8, "group": group})
        elif dice < 0.4:
            op = choose.choice(["lmv", "lldi"])
            text[core].append({"op": op, **base, "len": size})
        elif dice < 0.55:
            op = choose.choice(["ld", "st"]) if memory else "lmv"
            text[core].append({"op": op, **base, "size": size, "len": size})
        elif count > 1:
            other = choose.choice([x for x in range(count) if x != core])
            slots(other)
            if dice < 0.85:
                text[core].append({"op": "send", "rd": 0, "core": other, "size": size})
                text[other].append({"op": "recv", "rd": 0, "core": core, "size": size})
            elif registers[other] < 20 and registers[core] < 20:
                signal(core, other, choose.choice([1, 1, 2]))
                signal(other, core, 1)
    for core in range(count):
        text[core].append({"op": "vrelu", "rd": 0, "rs1": 1, "len": 16})
    return {
        "config": {
            "core_cnt": count,
            "array_group_map": {f"core{core}": [2, 1] for core in range(count)},
        },
        **{f"core{core}": text[core] for core in range(count)},
    }


class Oracle:
    """Executes a document for some generations; see the module."""

    def __init__(self, document: Document, config: PimConfig) -> None:
        assert config.core.period_ns == 1
        self._chip = config
        count = document["config"]["core_cnt"]
        self._groups = document["config"]["array_group_map"]
        self._text = {core: document[f"core{core}"] for core in range(count)}
        self._posts: dict[Any, deque[int]] = defaultdict(deque)

    def run(self, generations: int, *, reverse: bool = False) -> dict[int, list[int]]:
        """Commit of each core's last instruction, ns, per generation."""
        self._finish: dict[int, list[int]] = {core: [] for core in self._text}
        threads = {core: self._core(core, generations) for core in self._text}
        blocked: dict[int, Step] = {}
        for core, thread in threads.items():
            self._advance(core, thread, None, blocked)
        memory_free = 0
        while blocked:
            ready = [
                (core, self._posts[step[1]])
                for core, step in sorted(blocked.items())
                if step[0] == "get" and self._posts[step[1]]
            ]
            if ready:
                core, posts = ready[0]
                del blocked[core]
                self._advance(core, threads[core], posts.popleft(), blocked)
                continue
            waiting = [
                (step[2], -core if reverse else core, core, step[1])
                for core, step in blocked.items()
                if step[0] == "memory"
            ]
            assert waiting, f"deadlock: {blocked}"
            arrival, _, core, service = min(waiting)
            memory_free = max(arrival, memory_free) + service
            del blocked[core]
            self._advance(core, threads[core], memory_free, blocked)
        return self._finish

    def _advance(
        self,
        core: int,
        thread: Generator[Step, int, None],
        value: int | None,
        blocked: dict[int, Step],
    ) -> None:
        try:
            step = next(thread) if value is None else thread.send(value)
            while step[0] == "post":
                self._posts[step[1]].append(step[2])
                step = next(thread)
            blocked[core] = step
        except StopIteration:
            pass

    def _core(self, me: int, generations: int) -> Generator[Step, int, None]:
        chip, unit = self._chip, self._chip.core
        memory, outer = unit.local_memory, chip.global_memory
        latency = chip.network.latency_ns
        home = chip.core_count

        def read(size: int) -> int:
            return -(-size // memory.data_width) * memory.read_latency_cycle

        def write(size: int) -> int:
            return -(-size // memory.data_width) * memory.write_latency_cycle

        def travel(source: int, target: int, size: int) -> int:
            return -(-size // chip.bus_width) * int(latency[source, target])

        commit, switch_free = 2, 0
        ib = ob = ibiw = 0
        for _ in range(generations):
            last = commit
            for item in self._text[me]:
                op = item["op"]
                if op in SLOTS:
                    if op == "setbw":
                        ibiw, ib, ob = (
                            item["ibiw"],
                            item["ibiw"] // 8,
                            item["obiw"] // 8,
                        )
                    commit += 1
                    continue
                start = commit + 1
                length, size = item.get("len", 0), item.get("size", 0)
                peer = item.get("core", -1)
                if op in VECTORS:
                    end = start + read(ib * length) * (2 if op in TWO else 1)
                    end += -(-length // unit.vector_width) * unit.vector_latency_cycle
                    end += write((ob if op in WIDE else ib) * length)
                    commit = end + 1
                elif op == "mvmul":
                    end = start + self._product(me, item, ibiw, ib, ob)
                    commit = end + 2
                elif op in ("lmv", "lldi"):
                    end = start + write(length) + (read(length) if op == "lmv" else 0)
                    commit = end + (1 if end - start > 1 else 2)
                elif op == "ld":
                    sent = max(start, switch_free)
                    beats = -(-size // outer.data_width)
                    switch_free = yield (
                        "memory",
                        beats * outer.read_latency_cycle,
                        sent + travel(me, home, 1),
                    )
                    commit = switch_free + write(size) + (1 if write(size) > 1 else 2)
                elif op == "st":
                    sent = max(start + read(size), switch_free)
                    beats = -(-size // outer.data_width)
                    switch_free = yield (
                        "memory",
                        beats * outer.write_latency_cycle,
                        sent + travel(me, home, size),
                    )
                    commit = switch_free + 2
                elif op == "send":
                    arrived = max(start, switch_free) + travel(me, peer, 1)
                    yield ("post", ("ready", me, peer), arrived)
                    allowed = yield ("get", ("permission", peer, me), 0)
                    queued = allowed + read(size)
                    arrived = max(queued, arrived + 1) + travel(me, peer, size)
                    yield ("post", ("payload", me, peer), arrived)
                    switch_free = arrived
                    commit = queued + (1 if read(size) > 1 else 2)
                elif op == "recv":
                    ready = yield ("get", ("ready", peer, me), 0)
                    switch_free = max(start, ready, switch_free) + travel(me, peer, 1)
                    yield ("post", ("permission", me, peer), switch_free)
                    arrived = yield ("get", ("payload", peer, me), 0)
                    commit = arrived + write(size) + (1 if write(size) > 1 else 2)
                elif op == "sync":
                    switch_free = max(start, switch_free) + travel(me, peer, 1)
                    yield (
                        "post",
                        ("signal", peer, item["event_register"]),
                        switch_free,
                    )
                    commit = start + 3
                elif op == "wait":
                    satisfied = start
                    for _ in range(item["wait_value"]):
                        arrived = yield (
                            "get",
                            ("signal", me, item["event_register"]),
                            0,
                        )
                        satisfied = max(satisfied, arrived)
                    commit = satisfied + 2
                last = commit
            self._finish[me].append(last)

    def _product(self, me: int, item: Document, ibiw: int, ib: int, ob: int) -> int:
        unit = self._chip.core.matrix
        memory = self._chip.core.local_memory
        front = (
            unit.dac_latency_cycle
            + -(-unit.xbar_latency_ns // unit.period_ns)
            + unit.sample_hold_latency_cycle
        )
        tail = unit.shift_adder_latency_cycle + unit.output_buffer_latency_cycle
        back = unit.adc_latency_cycle + tail
        back += (unit.xbar_cols // unit.adc_count - 1) * max(
            unit.adc_latency_cycle, tail
        )
        passes = (ibiw // unit.dac_resolution) * (unit.xbar_rows // unit.dac_count)
        cycles = front + back + (passes - 1) * max(front, back)
        crossbars = self._groups[f"core{me}"][item["group"]]
        written = unit.cell_precision * unit.xbar_cols // item["mbiw"] * ob * crossbars
        source = -(-unit.xbar_rows * ib * 8 // memory.data_width)
        result = -(-written // memory.data_width)
        return int(
            source * memory.read_latency_cycle
            + cycles * unit.period_ns
            + result * memory.write_latency_cycle
        )
