"""The pattern bound: how many cores the best mix of full cores would need.

A *pattern* says how many tasks of each kind share a core.  The least fractional
number of patterns that covers all tasks (the Gilmore-Gomory relaxation) is a strong
lower bound on cores.  It is computed by column generation: a small primal simplex
over patterns, and an exact search for the pattern of largest value under the
current prices.

Floating point only suggests prices.  The proof is exact: for integer prices p of the
kinds and V, the largest price of any pattern (an exhaustive search with integer
bounds), every core carries at most V, so ``ceil(sum p_k n_k / V)`` cores are needed
(Farley's bound).  The same integers say which patterns a packing on k cores can use
at all: the other k - 1 cores carry at most V each, so each core carries at least
``sum p_k n_k - (k - 1) V``.  Often these patterns are few, and choosing among them
decides the packing exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

#: Prices are integers of this scale; times a load (ns) they stay in int64.
_SCALE = 2**18
#: Search nodes of all exact pattern searches of one bound, times the kinds; when
#: they are spent, what is proved stays proved.
_NODE_WORK = 12_000_000
#: Patterns and search nodes of one enumeration.
_PATTERNS = 3_000
_ENUMERATION_NODES = 1_000_000
#: Kinds beyond which the simplex and the search are not worth their time.
KIND_LIMIT = 64
_TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class PatternKinds:
    """K kinds of tasks on like cores.

    Attributes:
        load: [K] size of one task in the limited dimension (ns, or slots).
        count: [K] tasks of each kind, at least 1.
        weight_ptr, weight_idx: [K+1], [R] weights of each kind, numbered from 0.
        slots: [W] weight slots.
        capacity: weight slots of a core.
        limit: largest sum of ``load`` on a core.
    """

    load: IntArray
    count: IntArray
    weight_ptr: IntArray
    weight_idx: IntArray
    slots: IntArray
    capacity: int
    limit: int


@dataclass(frozen=True, eq=False)
class PatternBound:
    """Result of :func:`pattern_bound`.

    Attributes:
        cores: proved lower bound on cores.
        patterns: [N, K] the patterns that were generated: each fits on one core.
        exhaustive: every packing on the cores asked about can be made of these
            patterns (with places left empty): none among them, none at all.
    """

    cores: int
    patterns: IntArray
    exhaustive: bool


def pattern_bound(kinds: PatternKinds, cores: int) -> PatternBound:
    """Lower bound on the cores for all tasks, and patterns to pack them with.

    Args:
        kinds: each kind fits on a core alone.
        cores: when the bound does not exceed it, all patterns that a packing on so
            many cores can use are enumerated, if they are few.
    """
    return _Simplex(kinds).run(cores)


class _Simplex:
    """Primal simplex over patterns; one exact pattern search for each pivot."""

    def __init__(self, kinds: PatternKinds) -> None:
        self.kinds = kinds
        size = kinds.load.size
        alone = kinds.count.copy()
        heavy = kinds.load > 0
        alone[heavy] = np.minimum(alone[heavy], kinds.limit // kinds.load[heavy])
        self.basis: FloatArray = np.diag(alone).astype(np.float64)
        self.cost: FloatArray = np.ones(size)
        self.patterns: list[IntArray] = list(np.diag(alone).astype(np.int64))
        self.seen = {row.tobytes() for row in self.patterns}
        self.nodes = _NODE_WORK // size

    def run(self, cores: int) -> PatternBound:
        kinds = self.kinds
        need = kinds.count.astype(np.float64)
        proved, complete = 1, False
        price: FloatArray = np.zeros(need.size)
        for _ in range(30 + 10 * kinds.load.size):
            try:
                level: FloatArray = np.asarray(np.linalg.solve(self.basis, need))
                price = np.asarray(np.linalg.solve(self.basis.T, self.cost))
            except np.linalg.LinAlgError:
                break  # a degenerate basis: what is proved stays proved
            lowest = int(price.argmin())
            if price[lowest] < -_TOLERANCE:  # covering a kind twice pays
                column: FloatArray = np.zeros(price.size)
                column[lowest] = -1.0
                if not self._enter(column, 0.0, level):
                    break
                continue
            value, pattern, exact = self._best_pattern(price)
            if exact and value > 0:
                total = int((self._whole(price) * kinds.count).sum())
                proved = max(proved, -(-total // value))
            if self.nodes <= 0:
                break
            if float(price @ pattern) <= 1.0 + _TOLERANCE:
                complete = exact
                break
            self._remember(pattern)
            if not self._enter(pattern.astype(np.float64), 1.0, level):
                break
        exhaustive = False
        if complete and proved <= cores:
            exhaustive = self._enumerate(price, cores)
        return PatternBound(proved, np.array(self.patterns), exhaustive)

    def _enumerate(self, price: FloatArray, cores: int) -> bool:
        """Add the maximal patterns that a packing on ``cores`` cores can use."""
        kinds, whole = self.kinds, self._whole(price)
        value, _, exact = self._best_pattern(price)
        if not exact:
            return False
        threshold = int((whole * kinds.count).sum()) - (cores - 1) * value
        found, number, nodes = _enumerate(
            whole,
            kinds.load,
            kinds.count,
            kinds.weight_ptr,
            kinds.weight_idx,
            kinds.slots,
            kinds.capacity,
            kinds.limit,
            self._order(whole),
            max(0, threshold),
            _PATTERNS,
            _ENUMERATION_NODES,
        )
        for pattern in found[: min(number, _PATTERNS)]:
            self._remember(pattern.copy())
        return bool(number <= _PATTERNS and nodes < _ENUMERATION_NODES)

    def _whole(self, price: FloatArray) -> IntArray:
        result: IntArray = np.floor(np.maximum(price, 0.0) * _SCALE).astype(np.int64)
        return result

    def _best_pattern(self, price: FloatArray) -> tuple[int, IntArray, bool]:
        kinds = self.kinds
        whole = self._whole(price)
        order = self._order(whole)
        value, pattern, nodes = _search(
            whole,
            kinds.load,
            kinds.count,
            kinds.weight_ptr,
            kinds.weight_idx,
            kinds.slots,
            kinds.capacity,
            kinds.limit,
            order,
            self.nodes,
        )
        exact = nodes < self.nodes
        self.nodes -= nodes
        return int(value), pattern, exact

    def _order(self, whole: IntArray) -> IntArray:
        ratio = whole / np.maximum(self.kinds.load, 1e-9)
        order: IntArray = np.argsort(-ratio, kind="stable")
        return order

    def _remember(self, pattern: IntArray) -> None:
        key = pattern.tobytes()
        if key not in self.seen:
            self.seen.add(key)
            self.patterns.append(pattern)

    def _enter(self, column: FloatArray, cost: float, level: FloatArray) -> bool:
        """Pivot a column into the basis; False when nothing can leave."""
        step = np.linalg.solve(self.basis, column)
        rows = np.flatnonzero(step > _TOLERANCE)
        if rows.size == 0:
            return False
        leave = int(rows[np.argmin(np.maximum(level[rows], 0.0) / step[rows])])
        self.basis[:, leave] = column
        self.cost[leave] = cost
        return True


@njit(cache=True)
def _optimistic(
    position: int,
    room: int,
    value: IntArray,
    load: IntArray,
    count: IntArray,
    order: IntArray,
) -> int:
    """Fractional knapsack over the kinds from ``position`` on, rounded down."""
    total = 0
    for place in range(position, order.size):
        kind = order[place]
        if value[kind] == 0:
            continue
        work = load[kind] * count[kind]
        if work <= room:
            total += value[kind] * count[kind]
            room -= work
        else:
            total += value[kind] * room // load[kind]
            break
    return total


@njit(cache=True)
def _search(
    value: IntArray,
    load: IntArray,
    count: IntArray,
    ptr: IntArray,
    idx: IntArray,
    slots: IntArray,
    capacity: int,
    limit: int,
    order: IntArray,
    node_limit: int,
) -> tuple[int, IntArray, int]:
    """Pattern of largest value: (value, counts, nodes); exact below the node limit.

    Depth first over the kinds by falling value for their load, most tasks first.
    """
    size = order.size
    taken = np.full(size + 1, -1, dtype=np.int64)
    best_taken = np.zeros(size, dtype=np.int64)
    uses = np.zeros(slots.size, dtype=np.int64)
    best, worth, room, used, nodes = 0, 0, limit, 0, 0
    place = 0
    while place >= 0:
        if place == size:
            if worth > best:
                best = worth
                best_taken[:] = taken[:size]
            place -= 1
            continue
        kind = order[place]
        if taken[place] < 0:
            nodes += 1
            if nodes >= node_limit:
                break
            if worth + _optimistic(place, room, value, load, count, order) <= best:
                place -= 1
                continue
            most = count[kind] if value[kind] > 0 else 0
            if load[kind] > 0:
                most = min(most, room // load[kind])
            if most > 0:
                need = 0
                for entry in range(ptr[kind], ptr[kind + 1]):
                    if uses[idx[entry]] == 0:
                        need += slots[idx[entry]]
                if used + need > capacity:
                    most = 0
                else:
                    used += need
                    for entry in range(ptr[kind], ptr[kind + 1]):
                        uses[idx[entry]] += 1
            taken[place] = most
            worth += most * value[kind]
            room -= most * load[kind]
        elif taken[place] == 0:
            taken[place] = -1
            place -= 1
            continue
        else:
            taken[place] -= 1
            worth -= value[kind]
            room += load[kind]
            if taken[place] == 0:
                for entry in range(ptr[kind], ptr[kind + 1]):
                    uses[idx[entry]] -= 1
                    if uses[idx[entry]] == 0:
                        used -= slots[idx[entry]]
            nodes += 1
        place += 1
        taken[place] = -1
    result = np.zeros(size, dtype=np.int64)
    for place in range(size):
        result[order[place]] = best_taken[place]
    return best, result, nodes


@njit(cache=True)
def _enumerate(
    value: IntArray,
    load: IntArray,
    count: IntArray,
    ptr: IntArray,
    idx: IntArray,
    slots: IntArray,
    capacity: int,
    limit: int,
    order: IntArray,
    threshold: int,
    most_patterns: int,
    node_limit: int,
) -> tuple[IntArray, int, int]:
    """Maximal patterns worth at least ``threshold``: (patterns, number, nodes).

    A pattern is maximal when no further task of any kind fits.  Complete when the
    number is at most ``most_patterns`` and the nodes are below their limit.
    """
    size = order.size
    result = np.zeros((most_patterns, size), dtype=np.int64)
    taken = np.full(size + 1, -1, dtype=np.int64)
    uses = np.zeros(slots.size, dtype=np.int64)
    number, worth, room, used, nodes = 0, 0, limit, 0, 0
    place = 0
    while place >= 0:
        if place == size:
            maximal = True
            for other in range(size):
                kind = order[other]
                if taken[other] >= count[kind] or load[kind] > room:
                    continue
                need = 0
                for entry in range(ptr[kind], ptr[kind + 1]):
                    if uses[idx[entry]] == 0:
                        need += slots[idx[entry]]
                if used + need <= capacity:
                    maximal = False
                    break
            if maximal and worth >= threshold:
                number += 1
                if number > most_patterns:
                    break
                for other in range(size):
                    result[number - 1, order[other]] = taken[other]
            place -= 1
            continue
        kind = order[place]
        if taken[place] < 0:
            nodes += 1
            if nodes >= node_limit:
                break
            if worth + _optimistic(place, room, value, load, count, order) < threshold:
                place -= 1
                continue
            most = count[kind]
            if load[kind] > 0:
                most = min(most, room // load[kind])
            if most > 0:
                need = 0
                for entry in range(ptr[kind], ptr[kind + 1]):
                    if uses[idx[entry]] == 0:
                        need += slots[idx[entry]]
                if used + need > capacity:
                    most = 0
                else:
                    used += need
                    for entry in range(ptr[kind], ptr[kind + 1]):
                        uses[idx[entry]] += 1
            taken[place] = most
            worth += most * value[kind]
            room -= most * load[kind]
        elif taken[place] == 0:
            taken[place] = -1
            place -= 1
            continue
        else:
            taken[place] -= 1
            worth -= value[kind]
            room += load[kind]
            if taken[place] == 0:
                for entry in range(ptr[kind], ptr[kind + 1]):
                    uses[idx[entry]] -= 1
                    if uses[idx[entry]] == 0:
                        used -= slots[idx[entry]]
            nodes += 1
        place += 1
        taken[place] = -1
    return result, number, nodes
