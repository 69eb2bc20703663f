"""Check an answer of the joint model without the solver, the DP or a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.models.instances import validate_packing

if TYPE_CHECKING:
    from raptor_cp.models.instances import JointInstance
    from raptor_cp.models.pipeline_joint import JointStage


def validate_joint(
    instance: JointInstance, stages: tuple[JointStage, ...]
) -> list[str]:
    """One sentence for each violation; none when the answer stands."""
    ends = [0, *(s.last for s in stages)]
    starts = [*(s.first for s in stages), instance.groups]
    if ends != starts:
        return ["the stages do not cover all groups in order"]
    wrong = []
    if not instance.rules.min_stages <= len(stages) <= instance.depth:
        wrong.append(f"{len(stages)} stages")
    if sum(s.cores for s in stages) > instance.cores:
        wrong.append(f"more than {instance.cores} cores")
    allowed = instance.segments_allowed()
    least, most = instance.rules.core_range(instance.groups, instance.cores)
    for number, stage in enumerate(stages):
        i, j = stage.first, stage.last
        if not allowed[i, j] or not least[i, j] <= stage.cores <= most[i, j]:
            wrong.append(f"stage {number} breaks a side constraint")
        part = instance.segment(i, j, stage.cores, stage.load_ns)
        wrong += [f"stage {number}: {w}" for w in validate_packing(part, stage.core_of)]
        if stage.span_ns != dependency_span(instance, i, j):
            wrong.append(f"stage {number} states a wrong dependency span")
    return wrong


def dependency_span(instance: JointInstance, first: int, last: int) -> int:
    """Longest path of execution times (ns) inside groups [first, last)."""
    begin, end = int(instance.group_ptr[first]), int(instance.group_ptr[last])
    load = instance.packing.load_ns
    finish = {task: int(load[task]) for task in range(begin, end)}
    pairs = zip(instance.edge_dst.tolist(), instance.edge_src.tolist(), strict=True)
    for target, source in sorted(pairs):  # ids are a topological order
        if begin <= source and target < end:
            path = finish[source] + int(load[target])
            finish[target] = max(finish[target], path)
    return max(finish.values(), default=0)
