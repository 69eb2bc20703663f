"""Which rows and columns a nearest-neighbour Resize takes (ONNX operator Resize)."""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raptor_cp.network.onnx_nodes import Node


def nearest_indices(
    node: Node, size: int, wanted: int, scale: float | None
) -> tuple[int, ...] | None:
    """Source positions along one axis; None for a mode that is not known.

    ``scale``: the given factor, None where a size was given.
    """
    factor = wanted / size if scale is None else scale
    upsample = node.operator == "Upsample" or node.opset < 11
    mode = node.text(
        "coordinate_transformation_mode", "asymmetric" if upsample else "half_pixel"
    )
    rounding = node.text("nearest_mode", "floor" if upsample else "round_prefer_floor")
    result = []
    for position in range(wanted):
        match mode:
            case "asymmetric":
                place = position / factor
            case "half_pixel":
                place = (position + 0.5) / factor - 0.5
            case "pytorch_half_pixel":
                place = (position + 0.5) / factor - 0.5 if wanted > 1 else 0.0
            case "align_corners":
                place = position * (size - 1) / (wanted - 1) if wanted > 1 else 0.0
            case "half_pixel_symmetric":
                adjustment = wanted / (factor * size)
                centre = size / 2 * (1 - adjustment)
                place = centre + (position + 0.5) / factor - 0.5
            case _:
                return None
        match rounding:
            case "round_prefer_floor":
                index = ceil(place - 0.5)
            case "round_prefer_ceil":
                index = floor(place + 0.5)
            case "floor":
                index = floor(place)
            case "ceil":
                index = ceil(place)
            case _:
                return None
        result.append(min(max(index, 0), size - 1))
    return tuple(result)
