"""Element functions as vector sequences, and the requantisation of partial sums.

The machine has rectification, hyperbolic tangent and logistic function; everything
else is a documented sequence.  Functions in :data:`NOT_EXPRESSIBLE` are priced by a
third-degree polynomial, and code generation refuses them by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.network.attributes import Activation, Function
from raptor_cp.targets.pim.isa import Opcode

if TYPE_CHECKING:
    from raptor_cp.targets.pim.profile import ProfileBuilder

#: Product of two narrow vectors, back to the narrow width.
PRODUCT = (Opcode.VVMUL, Opcode.VVSRA, Opcode.VRSU)
#: One step of Horner's rule.
HORNER = (*PRODUCT, Opcode.VVADD)
POLYNOMIAL = HORNER * 3
_HARD_SIGMOID = (*PRODUCT, Opcode.VVADD, Opcode.VRELU)

#: Vector instructions of each function on narrow elements.
FUNCTION_STEPS: dict[Function, tuple[Opcode, ...]] = {
    Function.RELU: (Opcode.VRELU,),
    Function.CLIP: (Opcode.VRSL, Opcode.VRSU),
    Function.LEAKY_RELU: (*PRODUCT, Opcode.VVMAX),
    Function.PRELU: (*PRODUCT, Opcode.VVMAX),
    Function.ELU: POLYNOMIAL,
    Function.SIGMOID: (Opcode.VSIGM,),
    Function.HARD_SIGMOID: _HARD_SIGMOID,
    Function.TANH: (Opcode.VTANH,),
    Function.GELU: (*PRODUCT, Opcode.VSIGM, *PRODUCT),
    Function.SILU: (Opcode.VSIGM, *PRODUCT),
    Function.HARD_SWISH: (*_HARD_SIGMOID, *PRODUCT),
    Function.SOFTPLUS: POLYNOMIAL,
    Function.MISH: (*POLYNOMIAL, Opcode.VTANH, *PRODUCT),
    Function.EXP: POLYNOMIAL,
    Function.LOG: POLYNOMIAL,
    Function.SQRT: POLYNOMIAL,
    Function.RECIPROCAL: POLYNOMIAL,
    Function.ERF: POLYNOMIAL,
    Function.NEG: (Opcode.VVSUB,),
    Function.ABS: (Opcode.VVSUB, Opcode.VVMAX),
    Function.SQUARE: PRODUCT,
}

#: Functions that the instruction set cannot compute exactly.
NOT_EXPRESSIBLE = frozenset(
    {
        Function.ELU,
        Function.GELU,
        Function.SOFTPLUS,
        Function.MISH,
        Function.EXP,
        Function.LOG,
        Function.SQRT,
        Function.RECIPROCAL,
        Function.ERF,
    }
)


def emit_steps(
    builder: ProfileBuilder,
    steps: tuple[Opcode, ...],
    count: int,
    length: int,
    narrow: int,
    wide: int,
) -> None:
    """``steps`` on ``count`` vectors of ``length`` elements.

    Products widen (narrow to wide), ``vvsra`` stays wide, ``vrsu`` after a shift
    narrows; everything else works on narrow elements.
    """
    shifted = False
    for opcode in steps:
        if opcode is Opcode.VVMUL:
            builder.vector(opcode, count, length, narrow, wide)
        elif opcode is Opcode.VVSRA:
            builder.vector(opcode, count, length, wide, wide)
            shifted = True
        elif opcode is Opcode.VRSU and shifted:
            builder.vector(opcode, count, length, wide, narrow)
            shifted = False
        else:
            builder.vector(opcode, count, length, narrow, narrow)


def emit_function(
    builder: ProfileBuilder,
    activation: Activation | None,
    count: int,
    length: int,
    narrow: int,
    wide: int,
) -> None:
    """A function of finished (narrow) elements."""
    if activation is not None:
        steps = FUNCTION_STEPS[activation.function]
        emit_steps(builder, steps, count, length, narrow, wide)


def emit_requantised(
    builder: ProfileBuilder,
    activation: Activation | None,
    count: int,
    length: int,
    wide: int,
    narrow: int,
    *,
    bias: bool,
) -> None:
    """Partial sums to finished elements, on ``count`` vectors of ``length``.

    Exact accumulators (``wide > narrow``): add bias and rounding constant, shift,
    rectify or clamp from below, clamp from above while narrowing.  With
    accumulators of the activation's width nothing is shifted: bias and function.
    """
    function = activation.function if activation is not None else None
    if wide == narrow:
        builder.vector(Opcode.VVADD, count if bias else 0, length, narrow)
        emit_function(builder, activation, count, length, narrow, wide)
        return
    builder.vector(Opcode.VVADD, count, length, wide)
    builder.vector(Opcode.VVSRA, count, length, wide)
    rectified = function is Function.RELU or (
        function is Function.CLIP and activation is not None and activation.alpha == 0
    )
    lower = Opcode.VRELU if rectified else Opcode.VRSL
    builder.vector(lower, count, length, wide)
    # The upper bound is a register value: a clipped maximum costs nothing more.
    builder.vector(Opcode.VRSU, count, length, wide, narrow)
    if function is not None and function is not Function.CLIP and not rectified:
        emit_function(builder, activation, count, length, narrow, wide)
