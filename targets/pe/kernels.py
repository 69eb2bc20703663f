"""Kernels that come with the ``pe`` target, and their registry.

``gemm_primitive`` and ``gemm_composite`` do the same product with one command for
each tile and with one command in all; ``gemm_prefetch`` is the chunked-prefetch
GEMM of the dispatch-cost spec (D8).  The grouped-query attention decode kernels
walk over tiles of keys and values with an online softmax: ``opt2`` fuses the merge
into the second composite of a tile, ``opt3`` issues it as single-op commands, and
``plain`` issues the products as single-op commands, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.targets.pe.commands import OpSpec, TensorHandle
from raptor_cp.targets.pe.knobs import reject_unknown_keys
from raptor_cp.units import ceil_div

if TYPE_CHECKING:
    from raptor_cp.targets.pe.kernel import Kernel, KernelSteps, TlContext


def gemm_primitive(
    tl: TlContext, *, m: int = 256, k: int = 256, n: int = 256, tile: int = 64
) -> KernelSteps:
    """``C = A @ B`` with loads, products and stores issued tile by tile."""
    _require_multiples(tile, m=m, k=k, n=n)
    rows, steps, columns = m // tile, k // tile, n // tile
    shape = (tile, tile)
    a = [[tl.hbm(f"a.{i}.{p}", shape) for p in range(steps)] for i in range(rows)]
    b = [[tl.hbm(f"b.{p}.{j}", shape) for j in range(columns)] for p in range(steps)]
    # Two buffers of each, so that a load and a product can overlap.
    left = [tl.tcm(f"left.{i}", shape) for i in range(2)]
    right = [tl.tcm(f"right.{i}", shape) for i in range(2)]
    sums = [tl.tcm(f"sum.{i}", shape) for i in range(2)]
    last = None
    turn = 0
    for i in range(rows):
        for j in range(columns):
            total = sums[(i * columns + j) % 2]
            for p in range(steps):
                x = tl.load(a[i][p], left[turn])
                y = tl.load(b[p][j], right[turn])
                tl.dot(x, y, total, accumulate=p > 0)
                turn = 1 - turn
            last = tl.store(total, tl.hbm(f"c.{i}.{j}", shape))
    if last is not None:
        yield tl.wait(last)


def gemm_composite(
    tl: TlContext, *, m: int = 256, k: int = 256, n: int = 256
) -> KernelSteps:
    """``C = A @ B`` as one composite; the scheduler makes the tiles."""
    a, b, c = tl.hbm("a", (m, k)), tl.hbm("b", (k, n)), tl.hbm("c", (m, n))
    yield tl.wait(tl.composite([gemm_op(a, b, c)], [c], "gemm"))


def gemm_prefetch(
    tl: TlContext, *, m: int = 64, n: int = 64, tile_k: int = 64, chunks: int = 16
) -> KernelSteps:
    """K-chunked GEMM: load the next chunk of B, multiply this one, accumulate.

    A is resident; each chunk costs one load, one product and one addition.
    """
    if chunks < 1:
        raise MalformedInput("needs at least one chunk", where="chunks", value=chunks)
    a = [tl.tcm(f"a.{p}", (m, tile_k)) for p in range(chunks)]
    b = [tl.hbm(f"b.{p}", (tile_k, n)) for p in range(chunks)]
    buffers = [tl.tcm(f"b_buffer.{i}", (tile_k, n)) for i in range(2)]
    partial = [tl.tcm(f"partial.{i}", (m, n)) for i in range(2)]
    total = tl.tcm("total", (m, n))
    tl.load(b[0], buffers[0])
    for p in range(chunks):
        if p + 1 < chunks:
            tl.load(b[p + 1], buffers[(p + 1) % 2])
        product = tl.dot(a[p], buffers[p % 2], partial[p % 2])
        tl.add(total, product, total)
    yield tl.wait(tl.store(total, tl.hbm("c", (m, n))))


@dataclass(frozen=True, slots=True)
class _Attention:
    """Tensors of one decode step: ``group`` query heads share one KV head."""

    query: TensorHandle
    keys: tuple[TensorHandle, ...]
    values: tuple[TensorHandle, ...]
    scores: tuple[TensorHandle, TensorHandle]
    maxima: tuple[TensorHandle, TensorHandle]
    tile_max: TensorHandle
    correction: TensorHandle
    weights: TensorHandle
    tile_sum: TensorHandle
    product: TensorHandle
    denominator: TensorHandle
    output: TensorHandle


def _attention(
    tl: TlContext, tiles: int, tile_kv: int, head_dim: int, group: int
) -> _Attention:
    if tiles < 1:
        raise MalformedInput("needs at least one tile", where="tiles", value=tiles)
    column = (group, 1)
    return _Attention(
        query=tl.load(tl.hbm("q", (group, head_dim)), tl.tcm("Q", (group, head_dim))),
        keys=tuple(tl.hbm(f"k.{t}", (head_dim, tile_kv)) for t in range(tiles)),
        values=tuple(tl.hbm(f"v.{t}", (tile_kv, head_dim)) for t in range(tiles)),
        scores=(tl.tcm("S0", (group, tile_kv)), tl.tcm("S1", (group, tile_kv))),
        maxima=(tl.tcm("m0", column), tl.tcm("m1", column)),
        tile_max=tl.tcm("m_tile", column),
        correction=tl.tcm("corr", column),
        weights=tl.tcm("P", (group, tile_kv)),
        tile_sum=tl.tcm("l_tile", column),
        product=tl.tcm("PV", (group, head_dim)),
        denominator=tl.tcm("l", column),
        output=tl.tcm("O", (group, head_dim)),
    )


def _finish_attention(tl: TlContext, t: _Attention) -> KernelSteps:
    out = tl.math("div", (t.output, t.denominator), t.output)
    yield tl.wait(tl.store(out, tl.hbm("o", t.output.shape)))


def _merge_ops(t: _Attention, tile: int) -> list[OpSpec]:
    """The eight steps of the online softmax merge of one tile."""
    old, new = t.maxima[tile % 2], t.maxima[(tile + 1) % 2]
    scores = t.scores[tile % 2]

    def op(kind: str, a: TensorHandle, b: TensorHandle, out: TensorHandle) -> OpSpec:
        return OpSpec(kind, {"src_a": a, "src_b": b}, out)

    def reduce(kind: str, a: TensorHandle, out: TensorHandle) -> OpSpec:
        return OpSpec(kind, {"src": a}, out, {"axis": 1})

    return [
        reduce("reduce_max", scores, t.tile_max),
        op("max", old, t.tile_max, new),
        op("exp_diff", old, new, t.correction),
        op("exp_diff", scores, new, t.weights),
        reduce("reduce_sum", t.weights, t.tile_sum),
        op("mul", t.denominator, t.correction, t.denominator),
        op("add", t.denominator, t.tile_sum, t.denominator),
        op("mul_bcast", t.output, t.correction, t.output),
    ]


def gqa_decode_opt2(
    tl: TlContext,
    *,
    tiles: int = 8,
    tile_kv: int = 128,
    head_dim: int = 128,
    group: int = 8,
) -> KernelSteps:
    """Two composites a tile; the second holds the merge, the product, the sum."""
    t = _attention(tl, tiles, tile_kv, head_dim, group)
    for tile in range(tiles):
        scores = t.scores[tile % 2]
        tl.composite([gemm_op(t.query, t.keys[tile], scores)], [scores], f"qk.{tile}")
        ops = [
            *_merge_ops(t, tile),
            gemm_op(t.weights, t.values[tile], t.product),
            OpSpec("add", {"src_a": t.output, "src_b": t.product}, t.output),
        ]
        # The state that lives from tile to tile: both maxima swap roles.
        state = [*t.maxima, t.denominator, t.output]
        tl.composite(ops, state, f"merge_pv.{tile}")
    yield from _finish_attention(tl, t)


def gqa_decode_opt3(
    tl: TlContext,
    *,
    tiles: int = 8,
    tile_kv: int = 128,
    head_dim: int = 128,
    group: int = 8,
) -> KernelSteps:
    """Two GEMM composites a tile, and the merge as eight single-op commands.

    The second product accumulates into the output, so it needs no sum of its own.
    """
    t = _attention(tl, tiles, tile_kv, head_dim, group)
    for tile in range(tiles):
        scores = t.scores[tile % 2]
        tl.composite([gemm_op(t.query, t.keys[tile], scores)], [scores], f"qk.{tile}")
        _issue_merge(tl, t, tile)
        product = gemm_op(t.weights, t.values[tile], t.output, accumulate=True)
        tl.composite([product], [t.output], f"pv.{tile}")
    yield from _finish_attention(tl, t)


def gqa_decode_plain(
    tl: TlContext,
    *,
    tiles: int = 8,
    tile_kv: int = 128,
    head_dim: int = 128,
    group: int = 8,
    resident: bool = False,
) -> KernelSteps:
    """``opt3`` without composites: loads, products and merge as single-op commands.

    ``resident``: keys and values are in local memory already, so nothing is loaded.
    """
    t = _attention(tl, tiles, tile_kv, head_dim, group)
    keys = [tl.tcm(f"K{i}", (head_dim, tile_kv)) for i in range(2)]
    values = [tl.tcm(f"V{i}", (tile_kv, head_dim)) for i in range(2)]
    for tile in range(tiles):
        k, v = keys[tile % 2], values[tile % 2]
        if not resident:
            tl.load(t.keys[tile], k)
            tl.load(t.values[tile], v)
        tl.dot(t.query, k, t.scores[tile % 2])
        _issue_merge(tl, t, tile)
        tl.dot(t.weights, v, t.output, accumulate=True)
    yield from _finish_attention(tl, t)


def _issue_merge(tl: TlContext, t: _Attention, tile: int) -> None:
    for op in _merge_ops(t, tile):
        axis = 1 if "axis" in op.extra else None
        tl.math(op.kind, tuple(op.operands.values()), op.out, axis=axis)


def gemm_op(
    a: TensorHandle, b: TensorHandle, out: TensorHandle, *, accumulate: bool = False
) -> OpSpec:
    """The GEMM operation of a composite; its descriptor carries m, k and n."""
    extents = {"m": a.rows, "k": a.columns, "n": b.columns}
    kind = "gemm_acc" if accumulate else "gemm"
    return OpSpec(kind, {"a": a, "b": b}, out, extents)


def _require_multiples(tile: int, **extents: int) -> None:
    for name, extent in extents.items():
        if tile < 1 or extent < 1 or ceil_div(extent, tile) * tile != extent:
            raise MalformedInput(
                "not a positive multiple of the tile",
                where=name,
                value=extent,
                expected=f"a multiple of {tile}",
            )


#: Shipped kernels by name.
KERNELS: dict[str, Kernel] = {
    kernel.__name__: kernel
    for kernel in (
        gemm_primitive,
        gemm_composite,
        gemm_prefetch,
        gqa_decode_opt2,
        gqa_decode_opt3,
        gqa_decode_plain,
    )
}


def find_kernel(name: str) -> Kernel:
    """The shipped kernel of that name.

    Raises:
        MalformedInput: there is none; the nearest name is given.
    """
    reject_unknown_keys({name: None}, KERNELS, where="kernel", what="kernel")
    return KERNELS[name]
