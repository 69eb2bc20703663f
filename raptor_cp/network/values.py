"""The numbers of a trained model: weights, biases, factors, constant operands.

A network says shapes only; whoever needs the numbers asks its source.  They are real
numbers in the network's own layout, whatever the file stores them as.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ModelValues:
    """Numbers of a network, by operation or tensor; what was folded is included.

    Attributes:
        weights: operation -> ``[groups, K, N]``; rows of a convolution in order
            (kernel row, kernel column, channel of the group), rows of a GEMM in the
            logical order of its input.
        biases: operation -> ``[channels]``, of weighted operations and SCALE.
        scales: operation -> ``[channels]``: factors of SCALE, slopes of PReLU.
        tensors: constant tensor -> its elements in its shape.
    """

    weights: dict[str, Floats] = field(default_factory=dict)
    biases: dict[str, Floats] = field(default_factory=dict)
    scales: dict[str, Floats] = field(default_factory=dict)
    tensors: dict[str, Floats] = field(default_factory=dict)


class ValueSource(Protocol):
    """Where the numbers of a network come from."""

    def read(self) -> ModelValues:
        """All numbers; they may need as much memory as the model's weights."""
        ...
