"""``raptor-cp targets``: registered targets and built-in chip configurations."""

from __future__ import annotations

from raptor_cp.cli.options import Json
from raptor_cp.cli.running import print_columns, print_json, reported


@reported
def targets(json: Json = False) -> None:
    """List the registered targets and where they come from."""
    from raptor_cp.targets.registry import registered

    rows = [
        {
            "kind": kind,
            "factory": point.value,
            "package": point.dist.name if point.dist else "",
        }
        for kind, point in registered().items()
    ]
    if json:
        print_json(rows)
        return
    print_columns(
        ("kind", "factory", "package"),
        [(row["kind"], row["factory"], row["package"]) for row in rows],
    )
