"""What the instruction events module takes and gives: options, groups, the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from raptor_cp.periodic.event_graph import EventGraph

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EventOptions:
    """What the graph models.

    Attributes:
        network_queues: messages wait for the core's switch.
        issue: scalar slots and retirement delays cost time.
        memory_controller: every global request is a node of a FIFO server;
            otherwise requests are counted and their service is a fixed delay.
    """

    network_queues: bool = True
    issue: bool = True
    memory_controller: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SignalGroup:
    """Waits and signals of one event register, in order.

    Attributes:
        core, register: where the register is.
        waits: event of each wait.
        signals: per wait, the events of the signals that it consumes.
        sources: distinct cores that signal it.
    """

    core: int
    register: int
    waits: tuple[int, ...]
    signals: tuple[tuple[int, ...], ...]
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class InstructionEvents:
    """A program as an event graph, with the counts that stand beside it.

    Attributes:
        graph: the events; one completion (``exit``) per core.
        cores: ids of the cores that have instructions.
        exit_event: event of each core's last commit, in the order of ``cores``.
        instructions, work_ns, requests: per core.
        memory_service_ns: serialized service of one generation.
        energy_pj: dynamic energy of one generation.
        groups: event registers whose waits have signals.
        softmax: vsoftmax instructions, which have no timed work.
        endless_cores: cores whose last instruction has no unit: in latency mode
            the simulator never reports them finished.
    """

    graph: EventGraph
    cores: tuple[int, ...]
    exit_event: Ints
    instructions: int
    work_ns: Ints
    requests: int
    memory_service_ns: int
    energy_pj: float
    groups: tuple[SignalGroup, ...]
    softmax: int
    endless_cores: tuple[int, ...]
