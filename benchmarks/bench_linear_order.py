"""Linear orders side by side: the list schedule of one generation and the steady order.

Schedules every pipeline scenario of the PIM target through memory and directly with
each of the two rules first, and prints the selected intervals.
"""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import patch

import raptor_cp as rc
from raptor_cp.realization.plan import CrossStage, OrderRule, Policy
from raptor_cp.realized import PlanForm

SCENARIOS = Path(__file__).resolve().parents[1] / "scenarios"
RULES = {
    "list": (OrderRule.BLOCKING, OrderRule.OVERLAPPING),
    "steady": (OrderRule.STEADY, OrderRule.BLOCKING),
}


def main() -> None:
    """Print one line a scenario and form."""
    names = sorted(
        path.stem
        for path in SCENARIOS.glob("*.yaml")
        if (s := rc.load(path).scenario).mode == "pipeline" and s.target.kind == "pim"
    )
    print(
        f"{'scenario':24} {'form':7} {'list':>10} {'steady':>10} {'change':>8}  seconds"
    )
    for name in names:
        for way in (CrossStage.MEMORY, CrossStage.DIRECT):
            found, seconds = {}, {}
            for rule, orders in RULES.items():
                forms = tuple(PlanForm(Policy.DOUBLE_BUFFER, way, o) for o in orders)
                started = time.perf_counter()
                with (
                    patch("raptor_cp.realized.plan_forms", lambda _, f=forms: (f,)),
                    patch("raptor_cp.scheduler.plan_forms", lambda _, f=forms: (f,)),
                ):
                    result = rc.schedule(SCENARIOS / f"{name}.yaml")
                seconds[rule] = time.perf_counter() - started
                found[rule] = result.interval_ns
            if found["list"] is None or found["steady"] is None:
                shown = ["-" if v is None else f"{v / 1e6:.3f}" for v in found.values()]
                change = "-"
            else:
                shown = [f"{v / 1e6:.3f}" for v in found.values() if v is not None]
                change = f"{100 * (found['steady'] / found['list'] - 1):+.1f} %"
            print(
                f"{name:24} {way:7} {shown[0]:>10} {shown[1]:>10} {change:>8}  "
                f"{seconds['list']:.1f} / {seconds['steady']:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
