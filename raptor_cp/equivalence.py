"""Publication equivalence: which tasks of an operation are interchangeable.

Two tasks belong to one class exactly when all of these agree (scheduling spec,
'Ownership': publication equivalence):

* the operation;
* the shape of the work: role, extent of the output box, number of row tiles and of
  partial sums for a slice; the execution times or the commands otherwise;
* the set of resident weights;
* what is published: the multiset over the task's publications of (payload bits,
  extent of the fragment, bytes, runs, scalar, and the multiset of demands on it,
  each as consumer operation, bytes and runs);
* what is read: the multiset of (producer operation, payload bits, bytes and runs of
  the publication, scalar, bytes and runs of the demand);
* baseline traffic (kind, tensor, bytes, runs) and explicit edges (operation at the
  other end, bytes).

So exchanging the places of two members changes neither the capacity that is used
nor the number or size of any transfer.  The relation looks one step along the
edges: it says nothing about *which* lane of the other operation is met.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raptor_cp.graph.work import ExplicitWork, SliceWork

if TYPE_CHECKING:
    from collections.abc import Hashable

    from raptor_cp.graph.compute_graph import ComputeGraph
    from raptor_cp.graph.work import Work

_Extent = tuple[int, int, int] | None


def equivalence_classes(graph: ComputeGraph) -> tuple[tuple[int, ...], ...]:
    """Partition of all task ids; classes by first member, members ascending.

    ``O(T + F log F)`` time.
    """
    demands: list[list[tuple[int, int, int]]] = [[] for _ in graph.publications]
    reads: list[list[tuple[int, ...]]] = [[] for _ in graph.tasks]
    for move in graph.transfers:
        source = graph.publications[move.publication]
        consumer = graph.tasks[move.consumer].operation
        demands[move.publication].append((consumer, move.size, move.runs))
        reads[move.consumer].append(
            (
                graph.tasks[source.producer].operation,
                source.payload_bits,
                source.size,
                source.runs,
                int(source.scalar),
                move.size,
                move.runs,
            )
        )
    published: list[list[tuple[object, ...]]] = [[] for _ in graph.tasks]
    for number, source in enumerate(graph.publications):
        published[source.producer].append(
            (
                source.payload_bits,
                _extent(source.box) or (),
                source.size,
                source.runs,
                source.scalar,
                tuple(sorted(demands[number])),
            )
        )
    outside: list[list[tuple[int, str, int, int]]] = [[] for _ in graph.tasks]
    for access in graph.baseline:
        outside[access.task].append(
            (int(access.kind), access.tensor, access.size, access.runs)
        )
    edges: list[list[tuple[int, int, int]]] = [[] for _ in graph.tasks]
    for tail, head, size in graph.extra_edges:
        edges[tail].append((0, graph.tasks[head].operation, size))
        edges[head].append((1, graph.tasks[tail].operation, size))
    classes: dict[Hashable, list[int]] = {}
    for number, task in enumerate(graph.tasks):
        key = (
            task.operation,
            _shape(task.work),
            tuple(sorted(task.weights)),
            tuple(sorted(published[number], key=repr)),
            tuple(sorted(reads[number])),
            tuple(sorted(outside[number])),
            tuple(sorted(edges[number])),
        )
        classes.setdefault(key, []).append(number)
    return tuple(tuple(members) for members in classes.values())


def _shape(work: Work) -> Hashable:
    """The work without its position."""
    if isinstance(work, SliceWork):
        start, stop = work.row_tiles
        return ("slice", work.role, work.output.shape, stop - start, work.partials)
    if isinstance(work, ExplicitWork):
        return ("explicit", work.execution_ns)
    return ("commands", work.commands)


def _extent(box: tuple[int, int, int, int, int, int] | None) -> _Extent:
    if box is None:
        return None
    return (box[1] - box[0], box[3] - box[2], box[5] - box[4])
