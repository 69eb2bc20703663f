"""``reports/execution_plan.json``: what every core does in one generation.

The schema is described in docs/realization.md.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from raptor_cp.realization.plan import (
    Load,
    Receive,
    Run,
    Send,
    Signal,
    Store,
    Wait,
)

if TYPE_CHECKING:
    from raptor_cp.realization.plan import CorePlan, ExecutionPlan, Item

SCHEMA = "raptor-cp/execution-plan/1"


def execution_plan_document(plan: ExecutionPlan) -> dict[str, object]:
    """The plan as JSON data: equal plans give equal documents."""
    registers = plan.registers_used()
    problem = plan.schedule.problem
    return {
        "schema": SCHEMA,
        "graph": problem.graph.name,
        "policy": plan.policy.value,
        "cross_stage": plan.cross_stage.value,
        "banks": [{"publication": p, "banks": count} for p, count in plan.banks]
        + [{"edge": e, "banks": count} for e, count in plan.edge_banks],
        "chains": [
            {"writer": writer, "reader": reader} for writer, reader in plan.chains
        ],
        "totals": _totals(plan),
        "cores": [_core(plan, text, registers[text.core]) for text in plan.cores],
    }


def request_fingerprint(plan: ExecutionPlan, text: CorePlan) -> str:
    """SHA-256 of a core's ordered requests.

    One line of compact JSON for each item but runs: kind, what it concerns, the other
    core, bytes, runs, register and count, -1 where there is none.
    """
    digest = hashlib.sha256()
    for item in text.items:
        if not isinstance(item, Run):
            line = json.dumps(_request(plan, item), separators=(",", ":"))
            digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _request(plan: ExecutionPlan, item: Item) -> list[str | int]:
    match item:
        case Signal():
            return ["signal", item.core, item.register, item.purpose.value]
        case Wait():
            return ["wait", item.register, item.count, item.purpose.value]
        case Load():
            return [
                "load",
                _or_none(item.transfer),
                _or_none(item.baseline),
                _or_none(item.edge),
                item.size,
                item.runs,
            ]
        case Store():
            return [
                "store",
                _or_none(item.publication),
                _or_none(item.baseline),
                _or_none(item.edge),
                _or_none(item.consumer),
                item.size,
                item.runs,
            ]
        case Send() | Receive():
            direct = plan.direct[item.direct]
            return [
                "send" if isinstance(item, Send) else "receive",
                _or_none(direct.publication),
                _or_none(direct.edge),
                direct.source,
                direct.destination,
                direct.size,
            ]
        case _:
            return ["run", *item.tasks]


def _or_none(index: int | None) -> int:
    return -1 if index is None else index


def _totals(plan: ExecutionPlan) -> dict[str, int]:
    counts = dict.fromkeys(
        ("runs", "loads", "stores", "direct_transfers", "signals", "waits"), 0
    )
    loaded = stored = 0
    for text in plan.cores:
        for item in text.items:
            if isinstance(item, Run):
                counts["runs"] += 1
            elif isinstance(item, Load):
                counts["loads"] += 1
                loaded += item.size
            elif isinstance(item, Store):
                counts["stores"] += 1
                stored += item.size
            elif isinstance(item, Signal):
                counts["signals"] += 1
            elif isinstance(item, Wait):
                counts["waits"] += 1
    counts["direct_transfers"] = len(plan.direct)
    return counts | {
        "loaded_bytes": loaded,
        "stored_bytes": stored,
        "direct_bytes": sum(transfer.size for transfer in plan.direct),
    }


def _core(
    plan: ExecutionPlan, text: CorePlan, registers: tuple[int, ...]
) -> dict[str, object]:
    return {
        "core": text.core,
        "stage": text.stage,
        "registers": list(registers),
        "fingerprint": request_fingerprint(plan, text),
        "items": [_item(plan, item) for item in text.items],
    }


def _item(plan: ExecutionPlan, item: Item) -> dict[str, object]:
    graph = plan.schedule.problem.graph
    match item:
        case Signal():
            return {
                "kind": "signal",
                "purpose": item.purpose.value,
                "core": item.core,
                "register": item.register,
            }
        case Wait():
            return {
                "kind": "wait",
                "purpose": item.purpose.value,
                "register": item.register,
                "count": item.count,
            }
        case Load():
            found: dict[str, object] = {"kind": "load"}
            if item.transfer is not None:
                move = graph.transfers[item.transfer]
                found |= {
                    "publication": move.publication,
                    "transfer": item.transfer,
                    "consumer": move.consumer,
                }
            elif item.edge is not None:
                found |= {"edge": item.edge}
            elif item.baseline is not None:
                access = graph.baseline[item.baseline]
                found |= {"baseline": item.baseline, "tensor": access.tensor}
            return found | {"bytes": item.size, "runs": item.runs}
        case Store():
            found = {"kind": "store"}
            if item.publication is not None:
                found |= {"publication": item.publication}
                if item.consumer is not None:
                    found |= {"transfer": item.consumer}
            elif item.edge is not None:
                found |= {"edge": item.edge}
            elif item.baseline is not None:
                access = graph.baseline[item.baseline]
                found |= {"baseline": item.baseline, "tensor": access.tensor}
            return found | {"bytes": item.size, "runs": item.runs}
        case Send() | Receive():
            direct = plan.direct[item.direct]
            sending = isinstance(item, Send)
            found = {
                "kind": "send" if sending else "receive",
                "core": direct.destination if sending else direct.source,
                "position": direct.position,
                "bytes": direct.size,
            }
            if direct.publication is not None:
                found |= {
                    "publication": direct.publication,
                    "transfers": list(direct.transfers),
                }
            else:
                found |= {"edge": direct.edge}
            return found
        case _:
            return {
                "kind": "run",
                "operation": graph.operations[graph.tasks[item.tasks[0]].operation],
                "tasks": list(item.tasks),
            }
