"""Recording operations: naming, shape inference, and folding into producers."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.network.attributes import (
    BINARY_KINDS,
    WEIGHTED_KINDS,
    Activation,
    Attributes,
    Function,
    OpKind,
    ScaleAttributes,
    Shape,
)
from raptor_cp.network.operations import Operation, Tensor, WeightShape
from raptor_cp.network.shapes import checked_axis, infer_shape
from raptor_cp.network.structure import Network

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Kinds whose results an activation can be applied to before they are stored.
FUSING_KINDS = (*WEIGHTED_KINDS, *BINARY_KINDS, OpKind.SCALE)


class OperationRecorder:
    """Collects operations; :meth:`finish` makes the validated network.

    Args:
        name: of the network.
        weight_bits: width of every weight.
        activation_bits: width of every tensor element.
    """

    def __init__(
        self, name: str, *, weight_bits: int = 8, activation_bits: int = 8
    ) -> None:
        self.name = name
        self.weight_bits = weight_bits
        self.activation_bits = activation_bits
        #: Place named in errors instead of the operation, e.g. "operations[3]".
        self.location = ""
        self._inputs: list[str] = []
        self._constants: list[str] = []
        self._tensors: dict[str, Tensor] = {}
        self._operations: dict[str, Operation] = {}
        self._made_by: dict[str, str] = {}
        self._readers: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        #: What was approximated or assumed, for reports.
        self.notes: list[str] = []

    def input(self, shape: Sequence[int], name: str = "input") -> Tensor:
        """A tensor that arrives with each inference."""
        self._inputs.append(name)
        return self._tensor(name, tuple(shape))

    def constant(self, shape: Sequence[int], name: str) -> Tensor:
        """An operand that stays the same from inference to inference."""
        self._constants.append(name)
        return self._tensor(name, tuple(shape))

    def batch_norm(
        self, x: Tensor, *, axis: int = 1, fold: bool = True, name: str = ""
    ) -> Tensor:
        """Fold into the producer of ``x``, or append a SCALE.

        A fold replaces ``x``: no later call may read it.
        """
        name = self._named(name, "batch_norm")
        producer = self._foldable(x, WEIGHTED_KINDS) if fold else None
        if producer is not None and producer.weight is not None:
            weight = replace(producer.weight, bias=True)
            return self._fold(producer, name, replace(producer, weight=weight))
        checked_axis(axis, x.shape, self._where(name))
        return self._add(
            name,
            OpKind.SCALE,
            (x,),
            ScaleAttributes(axis),
            vector_parameters=2 * x.shape[axis],
        )

    def activate(
        self, x: Tensor, activation: Activation, *, fold: bool = True, name: str = ""
    ) -> Tensor:
        """Fold into the producer of ``x``, or append an ACTIVATION.

        A fold replaces ``x``: no later call may read it.
        """
        name = self._named(name, activation.function.value)
        producer = self._foldable(x, FUSING_KINDS) if fold else None
        if activation.function is Function.PRELU and producer is not None:
            # Factors and slopes: two vectors of one operation would be mixed up.
            producer = producer if producer.kind is not OpKind.SCALE else None
        if producer is not None:
            return self._fold(producer, name, replace(producer, activation=activation))
        return self._add(name, OpKind.ACTIVATION, (x,), activation)

    def fold_constant(
        self, x: Tensor, axis: int | None, *, shift: bool, name: str = ""
    ) -> Tensor | None:
        """Fold a product (``shift``: a sum) with constants into what computes ``x``.

        The constants are one number (``axis`` None) or one for each position of
        ``axis``.  They fold into weights and biases along the output channels, and
        into a SCALE along its own axis.  None if there is nothing to fold into.
        """
        producer = self._foldable(x, (*WEIGHTED_KINDS, OpKind.SCALE))
        if producer is None:
            return None
        name = self._named(name, "shift" if shift else "scale")
        if producer.weight is not None:
            gemm = producer.kind is OpKind.GEMM
            channels = len(x.shape) - 1 if gemm else 1
            if axis not in (None, channels):
                return None
            weight = replace(producer.weight, bias=producer.weight.bias or shift)
            return self._fold(producer, name, replace(producer, weight=weight))
        attributes = producer.attributes
        if not isinstance(attributes, ScaleAttributes):
            return None
        if axis not in (None, attributes.axis):
            return None
        both = 2 * x.shape[attributes.axis]
        return self._fold(producer, name, replace(producer, vector_parameters=both))

    def scale(
        self, x: Tensor, axis: int, *, vectors: int = 2, name: str = ""
    ) -> Tensor:
        """``x * scale + shift`` along ``axis``; ``vectors`` of them are constants."""
        name = self._named(name, "scale")
        checked_axis(axis, x.shape, self._where(name))
        return self._add(
            name,
            OpKind.SCALE,
            (x,),
            ScaleAttributes(axis),
            vector_parameters=vectors * x.shape[axis],
        )

    def absorb(self, x: Tensor, names: Sequence[str]) -> None:
        """Record source nodes that the operation behind ``x`` took over."""
        maker = self._made_by.get(x.name)
        if maker is not None and names:
            operation = self._operations[maker]
            known = dict.fromkeys((*operation.folded, *names))
            self._operations[maker] = replace(operation, folded=tuple(known))

    def added_since(self, count: int) -> list[str]:
        """Names of the operations after the first ``count``, the newest first."""
        added = len(self._operations) - count
        return list(islice(reversed(self._operations), added))

    @property
    def count(self) -> int:
        """Operations so far."""
        return len(self._operations)

    def holds(self, name: str) -> bool:
        """True if an operation or a tensor has this name."""
        return name in self._operations or name in self._tensors

    def finish(self, *outputs: Tensor) -> Network:
        """The network whose results are ``outputs``.

        Raises:
            MalformedInput: as :class:`Network`.
        """
        return Network(
            name=self.name,
            inputs=tuple(self._inputs),
            outputs=tuple(tensor.name for tensor in outputs),
            operations=tuple(self._operations.values()),
            tensors=self._tensors,
            constants=tuple(self._constants),
            notes=tuple(self.notes),
        )

    def _add(
        self,
        name: str,
        kind: OpKind,
        inputs: tuple[Tensor, ...],
        attributes: Attributes,
        *,
        weight: WeightShape | None = None,
        activation: Activation | None = None,
        vector_parameters: int = 0,
        folded: tuple[str, ...] = (),
    ) -> Tensor:
        where = self._where(name)
        for x in inputs:
            if self._tensors.get(x.name) != x:
                raise MalformedInput(
                    "the input is no tensor of this network, or was folded away",
                    where=where,
                    value=x.name,
                    expected="a tensor returned by this builder",
                )
        shape = infer_shape(
            kind, attributes, [x.shape for x in inputs], weight, where=where
        )
        if activation is not None:
            folded = (*folded, activation.function.value)
        operation = Operation(
            name=name,
            kind=kind,
            inputs=tuple(x.name for x in inputs),
            outputs=(name,),
            attributes=attributes,
            weight=weight,
            activation=activation,
            vector_parameters=vector_parameters,
            folded=folded,
        )
        if name in self._operations:
            raise MalformedInput(
                "two operations have the same name",
                where=where,
                value=name,
                expected="unique operation names",
            )
        result = self._tensor(name, shape)
        self._operations[name] = operation
        self._made_by[name] = name
        for x in dict.fromkeys(inputs):
            self._readers[x.name] = self._readers.get(x.name, 0) + 1
        return result

    def _foldable(self, x: Tensor, kinds: Sequence[OpKind]) -> Operation | None:
        """The producer of ``x`` if something may still be folded into it."""
        maker = self._made_by.get(x.name)
        if maker is None or self._readers.get(x.name, 0):
            return None
        operation = self._operations[maker]
        fits = operation.kind in kinds and operation.activation is None
        return operation if fits else None

    def _fold(self, producer: Operation, name: str, changed: Operation) -> Tensor:
        # The result gets a name of its own: a reader of the unfolded tensor must
        # fail instead of silently reading normalised or activated values.
        old = self._tensors.pop(producer.output)
        del self._made_by[producer.output]
        result = self._tensor(name, old.shape)
        self._made_by[name] = producer.name
        self._operations[producer.name] = replace(
            changed, outputs=(name,), folded=(*producer.folded, name)
        )
        return result

    def _tensor(self, name: str, shape: Shape) -> Tensor:
        if name in self._tensors:
            raise MalformedInput(
                "two tensors have the same name",
                where=self._where(name),
                value=name,
                expected="unique tensor names",
            )
        tensor = Tensor(name, shape, self.activation_bits)
        self._tensors[name] = tensor
        return tensor

    def _named(self, name: str, stem: str) -> str:
        if name:
            return name
        self._counts[stem] = self._counts.get(stem, 0) + 1
        return f"{stem}_{self._counts[stem]}"

    def _where(self, name: str) -> str:
        return self.location or f"operation {name!r}"
