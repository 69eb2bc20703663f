"""Points on processes of this machine.

A worker that dies is replaced, and its point is tried again after the others; a point
whose worker has died :data:`MAX_ATTEMPTS` times is recorded as failed.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from typing import TYPE_CHECKING

from raptor_cp.errors import InternalError
from raptor_cp.sweeps.records import PointFigures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raptor_cp.interruption import Stop
    from raptor_cp.sweeps.identity import ResolvedPoint

MAX_ATTEMPTS = 3
#: Workers in a row that die before they are warm: by themselves, or killed.
_MAX_FAILED_STARTS, _MAX_KILLED_STARTS = 3, 30
_POLL_S = 0.2

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from raptor_cp.sweeps.worker import main; main()"
)
#: A worker has one core's worth of work; libraries must not start threads for all.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def default_workers() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_local(
    points: Sequence[ResolvedPoint],
    deliver: Callable[[ResolvedPoint, PointFigures], None],
    stop: Stop,
    *,
    workers: int,
    on_death: Callable[[str], None],
) -> None:
    """Run points; returns when all are delivered or ``stop`` is requested.

    Args:
        points: none of them malformed.
        deliver: called in this thread with each point that is done; a point that is
            being worked on when ``stop`` is requested is not delivered.
        stop: polled several times a second.
        workers: processes at most.
        on_death: told about each worker that died.

    Raises:
        InternalError: workers do not even start.
    """
    _LocalRun(points, deliver, stop, on_death).run(min(workers, len(points)))


class _Worker:
    """A process and the point that it has."""

    def __init__(self, events: queue.SimpleQueue[tuple[_Worker, bytes]]) -> None:
        self.point: ResolvedPoint | None = None
        self.warm = False
        # A file, not a pipe: nobody has to read it.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
        )
        self._reader = threading.Thread(target=self._read, args=(events,), daemon=True)
        self._reader.start()

    def _read(self, events: queue.SimpleQueue[tuple[_Worker, bytes]]) -> None:
        stream = self._process.stdout
        for line in stream or ():
            if line.endswith(b"\n"):  # killed in the middle of a line
                events.put((self, line))
        events.put((self, b""))

    def send(self, point: ResolvedPoint) -> None:
        """Give it a point; that it is dead is learnt from its output's end."""
        self.point = point
        stream = self._process.stdin
        try:
            if stream is not None:
                stream.write(point.payload.encode() + b"\n")
                stream.flush()
        except OSError:
            pass

    def end(self) -> None:
        """Kill it, whatever it does, and let go of everything."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:  # unsent bytes
                pass
        self._stderr.close()

    def cause_of_death(self) -> tuple[bool, str]:
        """Whether it was killed from outside, and how it ended."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return False, "closed its output"
        if code < 0:
            try:
                return True, f"killed by {signal.Signals(-code).name}"
            except ValueError:
                return True, f"killed by signal {-code}"
        self._stderr.seek(0)
        lines = self._stderr.read()[-4096:].decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return False, f"exit code {code}" + (f": {last}" if last else "")


class _LocalRun:
    def __init__(
        self,
        points: Sequence[ResolvedPoint],
        deliver: Callable[[ResolvedPoint, PointFigures], None],
        stop: Stop,
        on_death: Callable[[str], None],
    ) -> None:
        self._waiting, self._left = deque(points), len(points)
        self._deliver, self._stop, self._on_death = deliver, stop, on_death
        self._events: queue.SimpleQueue[tuple[_Worker, bytes]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._deaths: dict[str, int] = {}
        self._failed_starts = self._killed_starts = 0

    def run(self, count: int) -> None:
        try:
            for _ in range(count):
                self._workers.append(_Worker(self._events))
            while self._left and not self._stop.requested:
                try:
                    worker, line = self._events.get(timeout=_POLL_S)
                except queue.Empty:
                    continue
                if line:
                    self._heard(worker, json.loads(line))
                else:
                    self._died(worker)
        finally:
            for worker in self._workers:
                worker.end()

    def _heard(self, worker: _Worker, document: dict[str, object]) -> None:
        if not worker.warm:
            worker.warm = True
            self._failed_starts = self._killed_starts = 0
        elif worker.point is not None:
            point, worker.point = worker.point, None
            self._done(point, PointFigures.from_dict(document))
        if self._waiting:
            worker.send(self._waiting.popleft())

    def _done(self, point: ResolvedPoint, figures: PointFigures) -> None:
        self._deliver(point, figures)
        self._left -= 1

    def _died(self, worker: _Worker) -> None:
        killed, cause = worker.cause_of_death()
        worker.end()
        self._workers.remove(worker)
        self._on_death(cause)
        if not worker.warm:
            self._failed_starts += not killed
            self._killed_starts += killed
            if (
                self._failed_starts >= _MAX_FAILED_STARTS
                or self._killed_starts >= _MAX_KILLED_STARTS
            ):
                raise InternalError(f"workers do not start ({cause})")
        elif worker.point is not None:
            self._try_again(worker.point, cause)
        if self._left and not self._stop.requested:
            idle = next((w for w in self._workers if w.warm and w.point is None), None)
            if idle is not None and self._waiting:
                idle.send(self._waiting.popleft())
            if self._waiting:
                self._workers.append(_Worker(self._events))

    def _try_again(self, point: ResolvedPoint, cause: str) -> None:
        deaths = self._deaths[point.id] = self._deaths.get(point.id, 0) + 1
        if deaths < MAX_ATTEMPTS:
            self._waiting.append(point)
            return
        sentence = f"worker died: {deaths} workers ended while they ran it ({cause})"
        self._done(point, PointFigures.failure(sentence, 4))
