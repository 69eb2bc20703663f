"""Kernels: Python generator functions that issue commands through ``tl``.

A kernel takes a :class:`TlContext` and keyword parameters.  Calls of ``tl`` issue
commands at once; only ``tl.wait`` suspends the kernel, and must be yielded::

    def doubled(tl, *, rows=64):
        x = tl.load(tl.hbm("x", (rows, 64)))
        y = tl.add(x, x)
        yield tl.wait(y)

:func:`run_live` drives the kernel against an element: each command is charged and
handed to the engines while the kernel runs.  :func:`replay` does the same from a
recorded log.  Both charge in ``ProcessingElement.issue``, nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.commands import (
    CompositeCmd,
    CopyCmd,
    DmaReadCmd,
    DmaWriteCmd,
    DType,
    GemmCmd,
    MathCmd,
    MemorySpace,
    OpSpec,
    PeCommand,
    PeCpuOverheadCmd,
    TensorHandle,
    command_writes,
)
from raptor_cp.targets.pe.element import ProcessingElement
from raptor_cp.targets.pe.op_log import Issue, OpLog, OpLogEntry, Wait

if TYPE_CHECKING:
    from raptor_cp.targets.pe.timeline import ElementTimeline
    from raptor_cp.targets.pe.topology import PeAttributes


@dataclass(frozen=True, slots=True)
class Completion:
    """What can be waited for: command ``command`` of this run."""

    command: int


#: Made by ``tl.wait``, to be yielded by the kernel.
Suspension: TypeAlias = Wait
KernelSteps: TypeAlias = Iterator[Suspension]
Kernel: TypeAlias = Callable[..., KernelSteps]


class CommandSink(Protocol):
    """Where a context issues to."""

    def issue(self, command: PeCommand) -> int:
        """Take a command; returns its index."""
        ...

    def wait(self, command: int) -> None:
        """Stop until a command is complete."""
        ...


class TlContext:
    """The language a kernel speaks; one instance for one run.

    Results go to ``out`` when given, else to a new local tensor.  Shapes follow
    from the operands; a reduction keeps its axis with extent one.
    """

    def __init__(self, sink: CommandSink) -> None:
        self._sink = sink
        self._names: set[str] = set()
        self._temporaries = 0
        self._last_write: dict[str, int] = {}
        self._suspension: Suspension | None = None

    def hbm(
        self, name: str, shape: Sequence[int], dtype: DType = DType.F16
    ) -> TensorHandle:
        """Declare a tensor off the element.

        Raises:
            MalformedInput: the name is taken, or the shape is empty.
        """
        return self._declare(name, shape, dtype, MemorySpace.HBM)

    def tcm(
        self, name: str, shape: Sequence[int], dtype: DType = DType.F16
    ) -> TensorHandle:
        """Declare a tensor in local memory (see :meth:`hbm`)."""
        return self._declare(name, shape, dtype, MemorySpace.TCM)

    def load(self, src: TensorHandle, out: TensorHandle | None = None) -> TensorHandle:
        """Start a DMA read into local memory."""
        dst = self._result(src.shape, src.dtype) if out is None else out
        self._issue(DmaReadCmd(src, dst))
        return dst

    def store(self, src: TensorHandle, out: TensorHandle) -> Completion:
        """Start a DMA write of ``src`` to ``out`` in HBM."""
        return self._issue(DmaWriteCmd(src, out))

    def copy(self, src: TensorHandle, out: TensorHandle | None = None) -> TensorHandle:
        """Copy inside local memory."""
        dst = self._result(src.shape, src.dtype) if out is None else out
        self._issue(CopyCmd(src, dst))
        return dst

    def dot(
        self,
        a: TensorHandle,
        b: TensorHandle,
        out: TensorHandle | None = None,
        *,
        accumulate: bool = False,
    ) -> TensorHandle:
        """Matrix product ``a @ b``; ``accumulate`` adds it to ``out``.

        Raises:
            MalformedInput: the inner extents differ, or nothing to add to.
        """
        if a.columns != b.rows:
            raise MalformedInput(
                "inner extents differ",
                where=f"dot({a.name}, {b.name})",
                value=(a.shape, b.shape),
            )
        if out is None:
            if accumulate:
                raise MalformedInput("accumulate needs out", where=f"dot({a.name})")
            out = self._result((a.rows, b.columns), a.dtype)
        self._issue(GemmCmd(a, b, out, a.rows, a.columns, b.columns, accumulate))
        return out

    def add(
        self, a: TensorHandle, b: TensorHandle, out: TensorHandle | None = None
    ) -> TensorHandle:
        """Elementwise sum, with broadcasting."""
        return self.math("add", (a, b), out)

    def sub(
        self, a: TensorHandle, b: TensorHandle, out: TensorHandle | None = None
    ) -> TensorHandle:
        """Elementwise difference, with broadcasting."""
        return self.math("sub", (a, b), out)

    def mul(
        self, a: TensorHandle, b: TensorHandle, out: TensorHandle | None = None
    ) -> TensorHandle:
        """Elementwise product, with broadcasting."""
        return self.math("mul", (a, b), out)

    def exp(
        self,
        a: TensorHandle,
        minus: TensorHandle | None = None,
        out: TensorHandle | None = None,
    ) -> TensorHandle:
        """``exp(a)``, or ``exp(a - minus)`` as one operation."""
        if minus is None:
            return self.math("exp", (a,), out)
        return self.math("exp_diff", (a, minus), out)

    def max(
        self,
        a: TensorHandle,
        b: TensorHandle | None = None,
        out: TensorHandle | None = None,
        *,
        axis: int | None = None,
    ) -> TensorHandle:
        """Elementwise maximum of two tensors, or of one along ``axis`` (0 or 1)."""
        if b is None:
            return self.math("reduce_max", (a,), out, axis=1 if axis is None else axis)
        return self.math("max", (a, b), out)

    def sum(
        self, a: TensorHandle, out: TensorHandle | None = None, *, axis: int = 1
    ) -> TensorHandle:
        """Sum along ``axis`` (0: rows, 1: columns)."""
        return self.math("reduce_sum", (a,), out, axis=axis)

    def math(
        self,
        op: str,
        operands: Sequence[TensorHandle],
        out: TensorHandle | None = None,
        *,
        axis: int | None = None,
    ) -> TensorHandle:
        """Any operation of the MATH engine, as one single-op command.

        Raises:
            MalformedInput: no operands, or an axis other than 0, 1 or none.
        """
        if not operands or axis not in (None, 0, 1):
            raise MalformedInput(
                "needs operands, and an axis of 0, 1 or none", where=op, value=axis
            )
        if out is None:
            rows = 1 if axis == 0 else max(h.rows for h in operands)
            columns = 1 if axis == 1 else max(h.columns for h in operands)
            out = self._result((rows, columns), operands[0].dtype)
        self._issue(MathCmd(op, tuple(operands), out, axis))
        return out

    def composite(
        self,
        ops: Sequence[OpSpec],
        rw_handles: Sequence[TensorHandle] = (),
        name: str = "composite",
    ) -> Completion:
        """Issue one composite.

        Raises:
            CompositeTooLarge: a ``ValueError``, when it exceeds the cap.
        """
        return self._issue(CompositeCmd(tuple(ops), tuple(rw_handles), name))

    def cycles(self, n: int) -> None:
        """Keep the CPU busy for exactly ``n`` cycles.

        Raises:
            MalformedInput: ``n`` is not a whole number of at least zero.
        """
        self._issue(PeCpuOverheadCmd(n))

    def wait(self, target: TensorHandle | Completion) -> Suspension:
        """Wait for a command, or for the last one that wrote a tensor.

        The result must be yielded.  Waiting is not charged.

        Raises:
            MalformedInput: nothing has written that tensor.
        """
        self._require_yielded()
        if isinstance(target, Completion):
            command = target.command
        elif target.name in self._last_write:
            command = self._last_write[target.name]
        else:
            raise MalformedInput(
                "no command has written this tensor", where=f"wait({target.name})"
            )
        self._suspension = Wait(command)
        return self._suspension

    def resume(self, yielded: Suspension) -> None:
        """Called by the driver with what the kernel yielded.

        Raises:
            MalformedInput: it is not the latest ``tl.wait``.
        """
        if yielded is not self._suspension or self._suspension is None:
            raise MalformedInput(
                "a kernel may only yield tl.wait(...)", value=repr(yielded)
            )
        self._suspension = None
        self._sink.wait(yielded.command)

    def finish(self) -> None:
        """Called by the driver when the kernel has ended."""
        self._require_yielded()

    def _issue(self, command: PeCommand) -> Completion:
        self._require_yielded()
        index = self._sink.issue(command)
        for handle in command_writes(command):
            self._last_write[handle.name] = index
        return Completion(index)

    def _require_yielded(self) -> None:
        if self._suspension is not None:
            raise MalformedInput(
                "tl.wait(...) was not yielded", hint="write: yield tl.wait(...)"
            )

    def _declare(
        self, name: str, shape: Sequence[int], dtype: DType, space: MemorySpace
    ) -> TensorHandle:
        if name in self._names:
            raise MalformedInput("this tensor name is taken", where=f"tensor {name}")
        self._names.add(name)
        return TensorHandle(name, tuple(shape), dtype, space)

    def _result(self, shape: Sequence[int], dtype: DType) -> TensorHandle:
        while f"t{self._temporaries}" in self._names:
            self._temporaries += 1
        return self.tcm(f"t{self._temporaries}", shape, dtype)


class _LiveSink:
    """Issues to an element and notes what was issued."""

    def __init__(self, element: ProcessingElement) -> None:
        self._element = element
        self.entries: list[OpLogEntry] = []

    def issue(self, command: PeCommand) -> int:
        index = self._element.issue(command)
        self.entries.append(Issue(command))
        return index

    def wait(self, command: int) -> None:
        self._element.wait(command)
        self.entries.append(Wait(command))


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A live run: what was issued and what happened."""

    op_log: OpLog
    timeline: ElementTimeline


def run_live(
    kernel: Kernel,
    attributes: PeAttributes,
    params: Mapping[str, object] | None = None,
) -> KernelRun:
    """Run ``kernel`` against an element, charging each command as it is issued.

    Raises:
        CompositeTooLarge: a composite above the cap.
        MalformedInput: not a generator function, unknown or missing parameters,
            or commands that cannot be.
    """
    if not inspect.isgeneratorfunction(kernel):
        raise MalformedInput("a kernel is a generator function", value=kernel)
    given = dict(params or {})
    sink = _LiveSink(element := ProcessingElement(attributes))
    tl = TlContext(sink)
    try:
        inspect.signature(kernel).bind(tl, **given)
    except TypeError as problem:
        legal = [p for p in inspect.signature(kernel).parameters if p != "tl"]
        raise MalformedInput(
            f"kernel parameters: {problem}",
            where=kernel.__name__,
            value=given,
            expected=f"parameters {', '.join(legal)}",
        ) from problem
    for suspension in kernel(tl, **given):
        tl.resume(suspension)
    tl.finish()
    return KernelRun(OpLog(tuple(sink.entries)), element.timeline())


def replay(log: OpLog, attributes: PeAttributes) -> ElementTimeline:
    """Issue a recorded log against an element.

    Raises:
        CompositeTooLarge: a composite above this element's cap.
        MalformedInput: the log waits for a command that was not issued.
    """
    element = ProcessingElement(attributes)
    for entry in log.entries:
        if isinstance(entry, Issue):
            element.issue(entry.command)
        else:
            element.wait(entry.command)
    return element.timeline()
