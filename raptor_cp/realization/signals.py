"""READY/FREE signals between stages, and the barrier policy's trees.

Only stages next to each other signal.  A reader further away is covered by a chain
of adjacent signals: READY is then implied by a path of distance 0, and the release
comes back through the same chain, one generation per stage, which is why such a
publication gets one more bank for each stage it skips.  Where the data gives no such
chain, signal-only pairs through the intermediate stages complete it.

All writers of a core that signal READY have its credit, so one register can join
them; another one joins its readers' FREE.  That is two registers a core, whatever
the network looks like.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raptor_cp.realization.plan import Item, Policy, Purpose, Signal, Wait
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

READY_REGISTER, FREE_REGISTER, RELEASE_REGISTER = 0, 1, 2
BARRIER_REGISTER = 3  #: and the following, one for each round
#: Cores in a row of :func:`coupling_pairs`.
LONGEST_CHAIN = 31


@dataclass(slots=True)
class CoreSignals:
    """Where signals stand in the text of a core."""

    entry: list[Item] = field(default_factory=list)  #: before anything else
    before_loads: list[Item] = field(default_factory=list)
    before_stores: list[Item] = field(default_factory=list)
    after_stores: list[Item] = field(default_factory=list)


def adjacent_pairs(
    pairs: Sequence[tuple[int, int]],
    stage_of: Mapping[int, int],
    stage_cores: Sequence[Sequence[int]],
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Adjacent (writer, reader) pairs that cover all ``pairs``, and those added.

    Args:
        pairs: (writer core, reader core), reader in a later stage.
        stage_of: stage of each active core.
        stage_cores: active cores of each stage, ascending, none empty.
    """
    readers: dict[int, set[int]] = defaultdict(set)
    far: list[tuple[int, int]] = []
    for writer, reader in sorted(set(pairs)):
        if stage_of[reader] - stage_of[writer] == 1:
            readers[writer].add(reader)
        else:
            far.append((writer, reader))
    added: list[tuple[int, int]] = []
    far.sort(key=lambda p: (stage_of[p[1]] - stage_of[p[0]], p))
    for writer, reader in far:
        front = {writer}
        last_stage = stage_of[reader]
        for stage in range(stage_of[writer] + 1, last_stage + 1):
            following = {r for w in front for r in readers[w]}
            if stage == last_stage:
                if reader not in following:
                    added.append((min(front), reader))
                    readers[min(front)].add(reader)
            elif following:
                front = following
            else:
                bridge = stage_cores[stage][0]
                added.append((min(front), bridge))
                readers[min(front)].add(bridge)
                front = {bridge}
    return sorted((w, r) for w in readers for r in readers[w]), sorted(added)


def coupling_pairs(
    links: Sequence[tuple[int, int]], stage_of: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Pairs that join cores which nothing else joins, earliest stages first.

    Cores without any link would run at rates of their own, ever further apart, and
    meet only in the queue of the shared memory: no interval would exist.  A signal
    pair costs them nothing once they are at the rate of the slowest.

    The reader of a pair begins a generation after the writer has ended it.  Along a
    chain of pairs the cores therefore use the memory one after another, which tells
    in the interval, but the last one lags behind by as many generations and every
    network input needs as many banks: past :data:`LONGEST_CHAIN` cores, several
    chains start from the first one.

    Args:
        links: pairs of cores that already wait for each other.
        stage_of: stage of each active core.
    """
    parent = {core: core for core in stage_of}

    def root(core: int) -> int:
        while parent[core] != core:
            parent[core] = parent[parent[core]]
            core = parent[core]
        return core

    for one, other in links:
        parent[root(one)] = root(other)
    ordered = sorted(stage_of, key=lambda core: (stage_of[core], core))
    heads: dict[int, int] = {}
    for core in ordered:
        heads.setdefault(root(core), core)
    firsts = list(heads.values())
    chains = max(1, ceil_div(len(firsts) - 1, LONGEST_CHAIN - 1))
    return [
        (firsts[max(0, number - chains)], reader)
        for number, reader in enumerate(firsts[1:], 1)
    ]


def point_to_point(
    pairs: Sequence[tuple[int, int]], policy: Policy
) -> dict[int, CoreSignals]:
    """Signals of ``double-buffer`` and ``release`` for adjacent pairs."""
    signals: dict[int, CoreSignals] = defaultdict(CoreSignals)
    writers: dict[int, list[int]] = defaultdict(list)
    readers: dict[int, list[int]] = defaultdict(list)
    for writer, reader in pairs:
        writers[reader].append(writer)
        readers[writer].append(reader)
    for reader in sorted(writers):
        own = signals[reader]
        own.entry.extend(
            Signal(writer, FREE_REGISTER, Purpose.FREE) for writer in writers[reader]
        )
        own.before_loads.append(
            Wait(READY_REGISTER, len(writers[reader]), Purpose.READY)
        )
    for writer in sorted(readers):
        own = signals[writer]
        wait = Wait(FREE_REGISTER, len(readers[writer]), Purpose.FREE)
        # With two banks the credit is needed only before the announcement, and the
        # stores overlap with the readers' previous generation.
        if policy is Policy.DOUBLE_BUFFER:
            own.after_stores.append(wait)
        else:
            own.before_stores.append(wait)
        own.after_stores.extend(
            Signal(reader, READY_REGISTER, Purpose.READY) for reader in readers[writer]
        )
    return signals


def barriers(stage_cores: Sequence[Sequence[int]]) -> dict[int, CoreSignals]:
    """Signals of the ``barrier`` policy.

    A stage ends with the restart permission of the next stage, for which its first
    core waits, and a dissemination barrier; then the first core announces the
    generation to the next stage's first core, from which a binary tree releases the
    other cores downstream.  The permission comes before the barrier because the
    barrier is what hands it to the other cores of a first stage.
    """
    signals: dict[int, CoreSignals] = defaultdict(CoreSignals)
    last = len(stage_cores) - 1
    for stage, cores in enumerate(stage_cores):
        count, head = len(cores), cores[0]
        for rank, core in enumerate(cores):
            own = signals[core]
            if stage > 0:
                if rank == 0:
                    previous = stage_cores[stage - 1][0]
                    own.entry.append(Signal(previous, FREE_REGISTER, Purpose.RESTART))
                    own.before_loads.append(Wait(READY_REGISTER, 1, Purpose.READY))
                else:
                    own.before_loads.append(Wait(RELEASE_REGISTER, 1, Purpose.RELEASE))
                own.before_loads.extend(
                    Signal(cores[child], RELEASE_REGISTER, Purpose.RELEASE)
                    for child in (2 * rank + 1, 2 * rank + 2)
                    if child < count
                )
            if rank == 0 and stage < last:
                own.after_stores.append(Wait(FREE_REGISTER, 1, Purpose.RESTART))
            step, register = 1, BARRIER_REGISTER
            while step < count:
                peer = cores[(rank + step) % count]
                own.after_stores.append(Signal(peer, register, Purpose.BARRIER))
                own.after_stores.append(Wait(register, 1, Purpose.BARRIER))
                step, register = 2 * step, register + 1
        if stage < last:
            signals[head].after_stores.append(
                Signal(stage_cores[stage + 1][0], READY_REGISTER, Purpose.READY)
            )
    return signals
