"""``raptor-cp zoo``: the built-in networks."""

from __future__ import annotations

from raptor_cp.cli.options import Json
from raptor_cp.cli.running import print_columns, print_json, reported


@reported
def zoo(json: Json = False) -> None:
    """List the built-in networks with their sizes."""
    from raptor_cp.network.zoo import ZOO, build

    rows: list[dict[str, object]] = []
    for name, entry in ZOO.items():
        network = build(name)
        rows.append(
            {
                "name": name,
                "summary": entry.summary,
                "input": list(entry.input_shape),
                "operations": len(network.operations),
                "macs": network.macs,
                "parameters": network.parameters,
            }
        )
    if json:
        print_json(rows)
        return
    print_columns(
        ("name", "MACs", "parameters", "summary"),
        [
            (
                str(row["name"]), f"{row['macs']:,}", f"{row['parameters']:,}",
                str(row["summary"]),
            )
            for row in rows
        ],
    )  # fmt: skip
