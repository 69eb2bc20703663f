"""The cycle that explains a recurrence, as reports show it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from raptor_cp.periodic.event_graph import EventGraph, Int64Array

#: Edges of a witness that reports list; totals cover the entire cycle.
MAX_WITNESS_EDGES = 128


@dataclass(frozen=True, slots=True)
class WitnessEdge:
    """One edge of a witness.

    Attributes:
        source, target: event numbers; ``*_label`` names them.
        delay_ns: delay plus the service of a source that is a request.
        distance: generations spanned.
    """

    source: int
    target: int
    source_label: str
    target_label: str
    delay_ns: int
    distance: int

    def to_dict(self) -> dict[str, int | str]:
        """The form used in JSON reports."""
        return {
            "source": self.source,
            "target": self.target,
            "source_label": self.source_label,
            "target_label": self.target_label,
            "delay_ns": self.delay_ns,
            "distance": self.distance,
        }


@dataclass(frozen=True, slots=True)
class CycleWitness:
    """A dependency cycle, starting at its smallest event.

    Attributes:
        delay_ns, distance, edge_count: totals over the entire cycle.
        cores, links: those met along it, rising and in order of label number.
        edges: the first ``MAX_WITNESS_EDGES`` edges.
    """

    delay_ns: int
    distance: int
    edge_count: int
    cores: tuple[int, ...]
    links: tuple[str, ...]
    edges: tuple[WitnessEdge, ...]

    @property
    def ratio_ns(self) -> Fraction:
        """Delay over distance, ns per generation."""
        return Fraction(self.delay_ns, self.distance)

    def to_dict(self) -> dict[str, object]:
        """The form used in JSON reports."""
        return {
            "witness": [edge.to_dict() for edge in self.edges],
            "totals": {
                "delay_ns": self.delay_ns,
                "distance": self.distance,
                "edges": self.edge_count,
                "cores": list(self.cores),
                "links": list(self.links),
            },
        }


def witness_of_edges(graph: EventGraph, edges: Int64Array) -> CycleWitness:
    """Describe a cycle given as edge numbers in order (``[n]``, n >= 1)."""
    edges = np.roll(edges, -int(np.argmin(graph.edge_src[edges])))
    sources = graph.edge_src[edges]
    delays = graph.edge_delay_ns[edges] + graph.service_ns[sources]
    cores = np.unique(graph.core[sources])
    links = np.unique(graph.link[sources])
    return CycleWitness(
        delay_ns=int(delays.sum()),
        distance=int(graph.edge_distance[edges].sum(dtype=np.int64)),
        edge_count=len(edges),
        cores=tuple(int(core) for core in cores if core >= 0),
        links=tuple(graph.link_labels[link] for link in links if link >= 0),
        edges=tuple(
            WitnessEdge(
                source=int(graph.edge_src[edge]),
                target=int(graph.edge_dst[edge]),
                source_label=graph.label(int(graph.edge_src[edge])),
                target_label=graph.label(int(graph.edge_dst[edge])),
                delay_ns=int(delays[place]),
                distance=int(graph.edge_distance[edge]),
            )
            for place, edge in enumerate(edges[:MAX_WITNESS_EDGES])
        ),
    )
