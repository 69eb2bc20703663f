"""Points on an existing Dask cluster (extra ``dask``).

Scenarios are sent, not paths; files that a scenario refers to (models, chip
configurations) are read by the workers under the same absolute path, and must have
the same content.  The workers need the same version of raptor-cp.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from raptor_cp.errors import MalformedInput, Unresolved
from raptor_cp.sweeps.execution import run_payload
from raptor_cp.sweeps.records import PointFigures

if TYPE_CHECKING:
    from raptor_cp.interruption import Stop
    from raptor_cp.sweeps.identity import ResolvedPoint


class _Future(Protocol):
    """The part of ``distributed.Future`` that is used."""

    status: str

    def result(self) -> object: ...

    def exception(self) -> BaseException | None: ...

    def add_done_callback(self, call: Callable[[_Future], None]) -> None: ...


class _Client(Protocol):
    """The part of ``distributed.Client`` that is used."""

    status: str

    def submit(
        self, function: Callable[[str], object], payload: str, *, key: str, pure: bool
    ) -> _Future: ...

    def cancel(self, futures: Sequence[_Future]) -> None: ...

    def close(self, timeout: float) -> None: ...


#: Seconds to reach the scheduler.
CONNECT_TIMEOUT_S = 10.0
_POLL_S, _CLOSE_S = 0.2, 5.0


def run_on_dask(
    points: Sequence[ResolvedPoint],
    deliver: Callable[[ResolvedPoint, PointFigures], None],
    stop: Stop,
    *,
    address: str,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> None:
    """Run points; returns when all are delivered or ``stop`` is requested.

    A point whose worker dies is tried again by the cluster, as often as its setting
    ``distributed.scheduler.allowed-failures`` says; then it is recorded as failed.

    Raises:
        MalformedInput: the package is missing, or there is no cluster at ``address``.
        Unresolved: the cluster was lost; what is delivered stays.
    """
    try:
        import distributed  # noqa: F401  sets its log levels
    except ImportError:
        raise MalformedInput(
            "a Dask cluster needs the package distributed",
            where="--dask",
            hint="pip install raptor-cp[dask]",
        ) from None
    with _quiet():
        client = _connected(address, timeout_s)
        try:
            _serve(client, points, deliver, stop)
        finally:
            client.close(_CLOSE_S)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A lost connection is one sentence of ours, not tracebacks of the library's."""
    loggers = [logging.getLogger(f"distributed.{name}") for name in ("client", "utils")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _connected(address: str, timeout_s: float) -> _Client:
    import distributed

    connect = cast("Callable[..., _Client]", distributed.Client)
    try:
        return connect(address, timeout=timeout_s, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise MalformedInput(
            f"no Dask scheduler answers within {timeout_s:g} s: {reason}",
            where="--dask",
            value=address,
            expected="the address of a running scheduler, tcp://host:8786",
        ) from None


def _serve(
    client: _Client,
    points: Sequence[ResolvedPoint],
    deliver: Callable[[ResolvedPoint, PointFigures], None],
    stop: Stop,
) -> None:
    ended: queue.SimpleQueue[tuple[ResolvedPoint, _Future]] = queue.SimpleQueue()
    # A key of an earlier driver would bring back what became of it.
    run = uuid.uuid4().hex
    futures = {}
    for point in points:
        future = client.submit(
            run_payload, point.payload, key=f"raptor-cp-{run}-{point.id}", pure=False
        )
        futures[point.id] = future
        future.add_done_callback(partial(_put, ended, point))
    try:
        while futures and not stop.requested:
            try:
                point, future = ended.get(timeout=_POLL_S)
            except queue.Empty:
                if client.status not in ("running", "connecting"):
                    raise Unresolved("the Dask cluster was lost") from None
                continue
            deliver(point, _figures(future))
            del futures[point.id]
    finally:
        client.cancel(list(futures.values()))


def _put(
    ended: queue.SimpleQueue[tuple[ResolvedPoint, _Future]],
    point: ResolvedPoint,
    future: _Future,
) -> None:
    ended.put((point, future))


def _figures(future: _Future) -> PointFigures:
    from distributed import KilledWorker

    if future.status == "finished":
        document = future.result()
        if not isinstance(document, Mapping):
            raise TypeError("a worker returned no figures")
        return PointFigures.from_dict(document)
    if future.status in ("cancelled", "lost"):
        raise Unresolved("the Dask cluster was lost")
    error = future.exception()
    if isinstance(error, KilledWorker):
        return PointFigures.failure("worker died: the cluster has given it up", 4)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return PointFigures.failure(f"the Dask worker could not run it: {text}", 4)
