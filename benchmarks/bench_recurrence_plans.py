"""Proved recurrence on candidate plans of real networks, and why some are unproved.

Run: ``python -m benchmarks.bench_recurrence_plans`` from the repository root; about a
minute and a half.  Up to eight candidates of each search (static timing) of six
networks with 8, 16 and 32 stages (the small one 4, 8 and 12), each realized through
memory and directly with the steady order, and under ``release``.  A plan counts when
both tie orders are proved.  What is unproved is executed for up to 3,000 generations.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from raptor_cp.periodic.analysis import OrderAnalysis, analyse_order
from raptor_cp.periodic.attempts import Part
from raptor_cp.periodic.dependency_order import coupled_parts
from raptor_cp.periodic.queue_engine import Stop, TieOrder, TokenExecution
from raptor_cp.periodic.recurrence import RecurrenceProof, StateHistory
from raptor_cp.realization.cost import continuations
from raptor_cp.realization.plan import CrossStage, OrderRule, Policy
from raptor_cp.realization.realize import realize
from raptor_cp.scenario import load
from raptor_cp.scheduler import schedule
from raptor_cp.targets.registry import create
from raptor_cp.verdict import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raptor_cp.periodic.event_graph import EventGraph

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
NETWORKS = {
    "resnet18-arch-a": (8, 16, 32),
    "resnet50-arch-a": (8, 16, 32),
    "squeezenet-arch-b": (8, 16, 32),
    "googlenet-arch-a": (8, 16, 32),
    "mobilenetv2-arch-a": (8, 16, 32),
    "audio-cnn-small-chip": (4, 8, 12),
}
FORMS = (
    (Policy.DOUBLE_BUFFER, CrossStage.MEMORY, OrderRule.STEADY),
    (Policy.DOUBLE_BUFFER, CrossStage.DIRECT, OrderRule.STEADY),
    (Policy.RELEASE, CrossStage.MEMORY, OrderRule.BLOCKING),
)
OVERRIDES = (
    "search.queue_evaluations=8",
    "search.timing=static",
    "solver.enabled=false",
)
LONGEST = 3_000


def plans() -> Iterator[tuple[str, EventGraph]]:
    """Names and event graphs of the plans."""
    for network, depths in NETWORKS.items():
        for depth in depths:
            loaded = load(
                SCENARIOS / f"{network}.yaml", (*OVERRIDES, f"pipeline.stages={depth}")
            )
            found, target = schedule(loaded), create(loaded)
            for candidate in found.search.candidates if found.search else ():
                for policy, way, rule in FORMS:
                    if policy is Policy.RELEASE and depth == 32:
                        continue
                    plan = realize(candidate.schedule, policy, way, rule)
                    events = target.extract_events(plan)
                    if isinstance(events, Unavailable):
                        raise SystemExit(events.reason)
                    yield f"{network} {depth} {policy}/{way}", events.graph


def proved(graph: EventGraph, more: int) -> bool:
    """Whether both tie orders recur within ``more`` continuations."""
    found = [analyse_order(graph, tie, continuations=more) for tie in TieOrder]
    return all(isinstance(f, OrderAnalysis) and f.recurrence_established for f in found)


def long_run(graph: EventGraph, order: TieOrder) -> str:
    """What the cold execution does far beyond the limits."""
    (part,) = (Part.of(part) for part in coupled_parts(graph))
    run = TokenExecution(part.graph, order, generations=LONGEST + 400)
    history = StateHistory(run, byte_limit=2**31)
    while run.reference_generations < LONGEST and run.advance() is Stop.CHECKPOINT:
        proof = history.observe()
        if isinstance(proof, RecurrenceProof):
            return (
                f"period {proof.period_generations} after a transient of "
                f"{proof.transient_generations} generations"
            )
    times = run.completion_times_ns()
    last = run.completed_generations - 1
    rates = times[:, last] - times[:, last - 1000]
    if rates.max() - rates.min() > 0:
        return f"parts still drift apart by {(rates.max() - rates.min()) / 1000:.2f} ns"
    return f"no state twice in {LONGEST} generations"


def main() -> None:
    """Print how many are proved, and the rest one by one."""
    begin = time.perf_counter()
    graphs = list(plans())
    print(f"{len(graphs)} plans, made in {time.perf_counter() - begin:.0f} s")
    limits: dict[str, Callable[[EventGraph], int]] = {
        "cold start alone": lambda _: 0,
        "1 continuation": lambda _: 1,
        "15 continuations": lambda _: 15,
        "cost evaluation": continuations,
    }
    for name, more in limits.items():
        begin = time.perf_counter()
        left = [(n, g) for n, g in graphs if not proved(g, more(g))]
        took = time.perf_counter() - begin
        print(
            f"{name:18} {len(graphs) - len(left):>4} proved, {took:.1f} s", flush=True
        )
    reasons: Counter[str] = Counter()
    for name, graph in left:
        for order in TieOrder:
            found = analyse_order(graph, order, continuations=continuations(graph))
            if not isinstance(found, OrderAnalysis) or not found.recurrence_established:
                reasons[f"{name}: {long_run(graph, order)}"] += 1
    for reason, count in sorted(reasons.items()):
        print(f"  {count} x {reason}")


if __name__ == "__main__":
    main()
