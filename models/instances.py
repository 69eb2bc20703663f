"""Plain instances of the models: frozen numpy arrays, no graph, no target.

Shapes use T tasks, R weight references, W resident weights, G operation groups,
P cores, S stages.  Loads and costs are ns, capacities weight slots, traffic bytes.
The adapters from a :class:`~raptor_cp.schedules.Problem` are at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raptor_cp.errors import MalformedInput
from raptor_cp.pipeline.groups import PipelineGroups
from raptor_cp.units import MAX_NS

if TYPE_CHECKING:
    from raptor_cp.pipeline.groups import StageLimits
    from raptor_cp.schedules import Problem

IntArray = NDArray[np.int64]
IndexArray = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

#: Cost of a segment or stage that does not fit on so many cores.
UNAVAILABLE = np.int64(2**62)


@dataclass(frozen=True, eq=False)
class PackingInstance:
    """Tasks with resident weights, and identical cores that hold their union.

    Attributes:
        load_ns: [T] execution time of each task.
        weight_ptr: [T+1] CSR offsets into ``weight_idx``.
        weight_idx: [R] resident weights of each task, ascending.
        slots: [W] weight slots of each weight.
        capacity: weight slots of a core.
        cores: number of identical cores.
        load_limit_ns: largest load of a core; None when loads do not matter.
        operation: [T] operation of each task, for messages.
        operation_names: names of the operations.

    Raises:
        MalformedInput: shapes or ranges that cannot be.
    """

    load_ns: IntArray
    weight_ptr: IndexArray
    weight_idx: IndexArray
    slots: IntArray
    capacity: int
    cores: int
    load_limit_ns: int | None = None
    operation: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    operation_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _freeze(self, "load_ns", np.int64)
        _freeze(self, "weight_ptr", np.int32)
        _freeze(self, "weight_idx", np.int32)
        _freeze(self, "slots", np.int64)
        operation = self.operation
        if operation.size == 0:
            operation = np.zeros(self.load_ns.size, dtype=np.int32)
        object.__setattr__(self, "operation", operation)
        _freeze(self, "operation", np.int32)
        _check(self.capacity >= 1, "core capacity is not positive", self.capacity)
        _check(self.cores >= 1, "number of cores is not positive", self.cores)
        _check(
            self.weight_ptr.size == self.tasks + 1
            and int(self.weight_ptr[-1]) == self.weight_idx.size,
            "weight offsets do not match the tasks",
            self.weight_ptr.size,
        )
        _check_range(self.load_ns, "load (ns)", 0)
        _check_range(self.slots, "weight slots", 1)
        _check(self.operation.size == self.tasks, "operations do not match", self.tasks)
        if self.weight_idx.size:
            _check(
                int(self.weight_idx.min()) >= 0
                and int(self.weight_idx.max()) < self.slots.size,
                "unknown resident weight",
                int(self.weight_idx.max()),
            )

    @property
    def tasks(self) -> int:
        """T."""
        return int(self.load_ns.size)

    def weights_of(self, task: int) -> tuple[int, ...]:
        """Resident weights of a task, ascending."""
        start, stop = self.weight_ptr[task], self.weight_ptr[task + 1]
        return tuple(self.weight_idx[start:stop].tolist())

    def name_of(self, operation: int) -> str:
        """Name of an operation, or its number."""
        names = self.operation_names
        return names[operation] if operation < len(names) else f"operation {operation}"

    def run(
        self, start: int, stop: int, cores: int, load_limit_ns: int | None
    ) -> PackingInstance:
        """The same for tasks ``start`` to ``stop`` (exclusive); weight ids stay."""
        first, last = int(self.weight_ptr[start]), int(self.weight_ptr[stop])
        return PackingInstance(
            load_ns=self.load_ns[start:stop],
            weight_ptr=self.weight_ptr[start : stop + 1] - np.int32(first),
            weight_idx=self.weight_idx[first:last],
            slots=self.slots,
            capacity=self.capacity,
            cores=cores,
            load_limit_ns=load_limit_ns,
            operation=self.operation[start:stop],
            operation_names=self.operation_names,
        )

    def only(self, tasks: list[int]) -> PackingInstance:
        """The same for some tasks, in the order given; weight ids stay."""
        sets = [self.weights_of(task) for task in tasks]
        return PackingInstance(
            load_ns=self.load_ns[tasks],
            weight_ptr=np.cumsum([0, *(len(s) for s in sets)], dtype=np.int32),
            weight_idx=np.array([w for s in sets for w in s], dtype=np.int32),
            slots=self.slots,
            capacity=self.capacity,
            cores=self.cores,
            load_limit_ns=self.load_limit_ns,
            operation=self.operation[tasks],
            operation_names=self.operation_names,
        )


def validate_packing(instance: PackingInstance, core_of: IntArray) -> list[str]:
    """Check an assignment without the solver; one sentence for each violation.

    Args:
        instance: what was asked.
        core_of: [T] core of each task.
    """
    wrong: list[str] = []
    if core_of.size != instance.tasks:
        return [f"{core_of.size} tasks are assigned, there are {instance.tasks}"]
    for core in range(instance.cores):
        tasks = np.flatnonzero(core_of == core).tolist()
        held = sorted({w for t in tasks for w in instance.weights_of(t)})
        used = int(instance.slots[held].sum()) if held else 0
        if used > instance.capacity:
            wrong.append(f"core {core} needs {used} slots of {instance.capacity}")
        load = int(instance.load_ns[tasks].sum()) if tasks else 0
        limit = instance.load_limit_ns
        if limit is not None and load > limit:
            wrong.append(f"core {core} has a load of {load} ns, limit {limit} ns")
    outside = np.flatnonzero((core_of < 0) | (core_of >= instance.cores))
    wrong.extend(f"task {t} is on no core" for t in outside.tolist())
    return wrong


@dataclass(frozen=True, slots=True)
class PartitionRules:
    """Side constraints on a partition of G groups; a cut is named by the first
    group after it (1 to G-1).

    Attributes:
        min_stages: least number of stages.
        forbidden_cuts: cuts that may not be made.
        together: groups that share one stage.
        apart: pairs of groups in different stages.
        max_cut_bytes: bytes across any one cut.
        total_cut_bytes: bytes across all cuts made, summed: beyond the DP.
        hop_limits: (group, later group, hops): at most so many cuts between.
        stage_memory_bytes: largest sum of ``group_bytes`` in a stage.
        group_cores: (group, least, most) cores of the stage that has the group.
    """

    min_stages: int = 1
    forbidden_cuts: tuple[int, ...] = ()
    together: tuple[tuple[int, ...], ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    max_cut_bytes: int | None = None
    total_cut_bytes: int | None = None
    hop_limits: tuple[tuple[int, int, int], ...] = ()
    stage_memory_bytes: int | None = None
    group_cores: tuple[tuple[int, int, int], ...] = ()

    def allowed(
        self, groups: int, cut_bytes: IntArray, group_bytes: IntArray
    ) -> BoolArray:
        """[G, G+1] segments that no local rule excludes."""
        cuttable = np.ones(groups + 1, dtype=np.bool_)
        for cut in self.forbidden_cuts:
            cuttable[cut] = False
        for members in self.together:
            if members:
                cuttable[min(members) + 1 : max(members) + 1] = False
        if self.max_cut_bytes is not None and cut_bytes.size:
            cuttable[1:groups] &= cut_bytes[1:groups] <= self.max_cut_bytes
        cuttable[0] = cuttable[groups] = True
        segments: BoolArray = cuttable[:groups, None] & cuttable[None, :]
        segments &= np.arange(groups)[:, None] < np.arange(groups + 1)[None, :]
        for one, other in self.apart:
            first, last = min(one, other), max(one, other)
            segments[: first + 1, last + 1 :] = False
        if self.stage_memory_bytes is not None and group_bytes.size:
            total = np.concatenate([[0], np.cumsum(group_bytes)])
            need = total[None, :] - total[:groups, None]
            segments &= need <= self.stage_memory_bytes
        return segments

    def core_range(self, groups: int, cores: int) -> tuple[IntArray, IntArray]:
        """[G, G+1] least and most cores of each segment."""
        least = np.ones((groups, groups + 1), dtype=np.int64)
        most = np.full((groups, groups + 1), cores, dtype=np.int64)
        for group, low, high in self.group_cores:
            inside = (slice(0, group + 1), slice(group + 1, groups + 1))
            least[inside] = np.maximum(least[inside], low)
            most[inside] = np.minimum(most[inside], high)
        return least, most

    @property
    def beyond_dp(self) -> bool:
        """Whether some rule couples segments, so that the DP alone cannot decide."""
        return self.total_cut_bytes is not None or bool(self.hop_limits)


@dataclass(frozen=True, eq=False)
class PartitionInstance:
    """G groups in order, cut into contiguous stages that share P cores.

    Attributes:
        cost_ns: [G, G+1, P] cost of groups [i, j) on k cores at ``[i, j, k-1]``,
            not increasing in k; :data:`UNAVAILABLE` where it does not fit.
        depth: largest number of stages.
        cores: P.
        rules: side constraints.
        cut_bytes: [G+1] bytes across each cut (ends unused); empty when unknown.
        group_bytes: [G] memory of each group; empty when unknown.
        group_names: for messages.
    """

    cost_ns: IntArray
    depth: int
    cores: int
    rules: PartitionRules = PartitionRules()
    cut_bytes: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    group_bytes: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("cost_ns", "cut_bytes", "group_bytes"):
            _freeze(self, name, np.int64)
        shape = self.cost_ns.shape
        _check(
            len(shape) == 3
            and shape[0] >= 1
            and shape[1] == shape[0] + 1
            and shape[2] == self.cores,
            "segment costs are not a [G, G+1, P] array",
            shape,
        )
        _check(self.depth >= 1, "stage depth is not positive", self.depth)
        _check(
            bool((self.cost_ns[:, :, 1:] <= self.cost_ns[:, :, :-1]).all()),
            "a segment gets dearer with more cores",
            "cost_ns",
        )
        self._check_rules()

    def _check_rules(self) -> None:
        rules, groups = self.rules, self.groups
        known = self.cut_bytes.size == groups + 1
        needs = rules.max_cut_bytes is not None or rules.total_cut_bytes is not None
        _check(known or not needs, "cut limits without cut bytes", self.cut_bytes.size)
        for cut in rules.forbidden_cuts:
            _check(1 <= cut < groups, "unknown cut", cut)
        members = [g for each in rules.together for g in each]
        members += [g for pair in rules.apart for g in pair]
        members += [g for a, b, _ in rules.hop_limits for g in (a, b)]
        members += [g for g, _, _ in rules.group_cores]
        for group in members:
            _check(0 <= group < groups, "unknown group in a rule", group)

    @property
    def groups(self) -> int:
        """G."""
        return int(self.cost_ns.shape[0])

    def thresholds(self) -> IntArray:
        """Distinct finite costs, ascending."""
        values: IntArray = np.unique(self.cost_ns)
        return values[values < UNAVAILABLE]

    def least_cores(self, limit_ns: int) -> IntArray:
        """[G, G+1] least cores with cost <= limit; P+1 where none or forbidden."""
        least, most = self.rules.core_range(self.groups, self.cores)
        above = (self.cost_ns > limit_ns).sum(axis=2).astype(np.int64)
        need: IntArray = np.maximum(above + 1, least)
        segments = self.rules.allowed(self.groups, self.cut_bytes, self.group_bytes)
        need[(need > most) | ~segments] = self.cores + 1
        return need


@dataclass(frozen=True, eq=False)
class BudgetInstance:
    """S stages with cost curves share P cores.

    Attributes:
        cost_ns: [S, P] cost of each stage on k cores at ``[s, k-1]``, not
            increasing; :data:`UNAVAILABLE` where it does not fit.
        cores: P.
        spare: cores that must stay idle.
        equal: stages that get the same number of cores.
        multiple_of: [S] each budget is a multiple of this; empty for 1.
        totals: (stages, most cores together), e.g. for one chip.
    """

    cost_ns: IntArray
    cores: int
    spare: int = 0
    equal: tuple[tuple[int, ...], ...] = ()
    multiple_of: tuple[int, ...] = ()
    totals: tuple[tuple[tuple[int, ...], int], ...] = ()

    def __post_init__(self) -> None:
        _freeze(self, "cost_ns", np.int64)
        shape = self.cost_ns.shape
        _check(
            len(shape) == 2 and shape[0] >= 1 and shape[1] == self.cores,
            "stage costs are not an [S, P] array",
            shape,
        )
        _check(
            bool((self.cost_ns[:, 1:] <= self.cost_ns[:, :-1]).all()),
            "a stage gets dearer with more cores",
            "cost_ns",
        )
        stages = [s for each in self.equal for s in each]
        stages += [s for each, _ in self.totals for s in each]
        for stage in stages:
            _check(0 <= stage < self.stages, "unknown stage in a rule", stage)
        _check(
            not self.multiple_of or len(self.multiple_of) == self.stages,
            "one multiple for each stage is needed",
            len(self.multiple_of),
        )
        for number in self.multiple_of:
            _check(number >= 1, "a multiple is not positive", number)

    @property
    def stages(self) -> int:
        """S."""
        return int(self.cost_ns.shape[0])


@dataclass(frozen=True, eq=False)
class JointInstance:
    """Partition, budgets and packing at once.

    Tasks are in group order.  The cost of a stage is the larger of its largest core
    load and its dependency span: the longest path of execution times inside it.

    Attributes:
        packing: all tasks and weights on all P cores.
        group_ptr: [G+1] first task of each group.
        edge_src: [E] source tasks of dependencies, any order.
        edge_dst: [E] destination tasks, each above its source.
        depth: largest number of stages.
        rules: side constraints that exclude segments or bound their cores; bytes
            are settled before (as forbidden cuts).
    """

    packing: PackingInstance
    group_ptr: IndexArray
    edge_src: IndexArray
    edge_dst: IndexArray
    depth: int
    rules: PartitionRules = PartitionRules()

    def __post_init__(self) -> None:
        for name in ("group_ptr", "edge_src", "edge_dst"):
            _freeze(self, name, np.int32)
        needs_bytes = (self.rules.max_cut_bytes, self.rules.stage_memory_bytes)
        _check(
            not self.rules.beyond_dp and needs_bytes == (None, None),
            "the joint problem takes forbidden cuts, groups together or apart, and "
            "core limits only",
            self.rules,
        )
        _check(self.depth >= 1, "stage depth is not positive", self.depth)
        pointer = self.group_ptr
        _check(
            pointer.size >= 2
            and int(pointer[0]) == 0
            and int(pointer[-1]) == self.packing.tasks
            and bool((np.diff(pointer) >= 0).all()),
            "group offsets do not match the tasks",
            pointer.size,
        )
        _check(
            bool((self.edge_src < self.edge_dst).all()),
            "tasks are not in topological order",
            self.edge_src.size,
        )

    @property
    def groups(self) -> int:
        """G."""
        return int(self.group_ptr.size) - 1

    def segments_allowed(self) -> BoolArray:
        """[G, G+1] segments that no rule excludes."""
        nothing = np.zeros(0, dtype=np.int64)
        return self.rules.allowed(self.groups, nothing, nothing)

    @property
    def cores(self) -> int:
        """P."""
        return self.packing.cores

    def segment(
        self, start: int, stop: int, cores: int, load_limit_ns: int
    ) -> PackingInstance:
        """Packing of groups [start, stop)."""
        return self.packing.run(
            int(self.group_ptr[start]), int(self.group_ptr[stop]), cores, load_limit_ns
        )


def packing_instance(problem: Problem, cores: int | None = None) -> PackingInstance:
    """Packing of a whole graph, loads at their least over all cores.

    Args:
        problem: graph, costs and chip.
        cores: number of cores; default: all of the chip.
    """
    graph, table = problem.graph, problem.costs.per_core_ns
    load = problem.costs.execution_ns if table is None else table.min(axis=1)
    return PackingInstance(
        load_ns=load,
        weight_ptr=graph.weight_ptr,
        weight_idx=graph.weight_idx,
        slots=graph.weight_slots,
        capacity=problem.resources.slots_per_core,
        cores=problem.resources.cores if cores is None else cores,
        operation=graph.task_operation,
        operation_names=graph.operations,
    )


def partition_rules(
    limits: StageLimits, groups: int, cores: int, *, min_stages: int = 1
) -> PartitionRules:
    """The rules that a scenario states, as the models read them."""
    low, high = limits.min_cores.tolist(), limits.max_cores.tolist()
    return PartitionRules(
        min_stages=min_stages,
        forbidden_cuts=tuple(c for c in range(1, groups) if not limits.allows_cut(c)),
        group_cores=tuple(
            (g, low[g], high[g]) for g in range(groups) if low[g] > 1 or high[g] < cores
        ),
    )


def joint_instance(
    problem: Problem, depth: int, rules: PartitionRules | None = None
) -> JointInstance:
    """The joint problem of a graph with at most ``depth`` stages.

    Where cores differ, loads are the least over all cores, so a bound stays one.
    """
    graph = problem.graph
    groups = PipelineGroups.of(problem)
    source = np.repeat(
        np.arange(graph.task_count, dtype=np.int32), np.diff(graph.edge_ptr)
    )
    return JointInstance(
        packing=packing_instance(problem),
        group_ptr=groups.task_ptr,
        edge_src=source,
        edge_dst=graph.edge_dst,
        depth=depth,
        rules=PartitionRules() if rules is None else rules,
    )


def _freeze(owner: object, name: str, dtype: type[np.generic]) -> None:
    array = np.array(getattr(owner, name), dtype=dtype)
    array.setflags(write=False)
    object.__setattr__(owner, name, array)


def _check(condition: bool, what: str, value: object) -> None:
    if not condition:
        raise MalformedInput(what, where="solver instance", value=value)


def _check_range(values: IntArray, what: str, minimum: int) -> None:
    if values.size:
        low, high = int(values.min()), int(values.max())
        _check(low >= minimum, f"{what} is below {minimum}", low)
        _check(high <= MAX_NS, f"{what} is above {MAX_NS}", high)
