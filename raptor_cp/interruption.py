"""Ending a run early: asked for from outside, noticed where nothing is half done.

A :class:`Stop` is set once, from a signal or another thread, and polled between the
steps of a run (phases, candidates, solves).  What runs meanwhile is finished or told
to end (:meth:`Stop.calling`); no exception appears in the middle of a step, so what
a run holds is always whole.  Without a request nothing at all is different.

:func:`stopping_on_signals` connects it to Ctrl-C (SIGINT) and SIGTERM.  A signal
reaches the main thread of Python only between two instructions of Python, which
can be seconds away while a solver or a compiled kernel runs; a thread of its own
learns of it at once and tells the solver.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from typing import TYPE_CHECKING

from raptor_cp.errors import Unresolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

#: What ends a run early; both are meant for the run as a whole.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds after which a second signal that Python has not seen ends the process.
_PATIENCE = 1.5
#: Seconds between reminders: a solve may begin while it is being told to end.
_REMINDER = 0.1


class Interrupted(Unresolved):
    """A run was asked to end before it had anything to return."""


class Stop:
    """A request to end early; may be set from any thread, never taken back.

    >>> stop = Stop()
    >>> stop.requested
    False
    >>> stop.request()
    >>> stop.requested
    True
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._listeners: list[Callable[[], object]] = []

    @property
    def requested(self) -> bool:
        """Whether the run should end."""
        return self._requested.is_set()

    def request(self) -> None:
        """Ask for the end; asking again tells everybody again."""
        self._requested.set()
        for listener in tuple(self._listeners):
            listener()

    def check(self, while_: str) -> None:
        """Leave a run that has nothing to show yet.

        Args:
            while_: what the run was doing, for the message.

        Raises:
            Interrupted: the end was asked for.
        """
        if self.requested:
            raise Interrupted(f"interrupted during {while_}: there is no schedule yet")

    @contextlib.contextmanager
    def calling(self, listener: Callable[[], object]) -> Iterator[None]:
        """Have ``listener`` called on a request while the body runs.

        It is called from the thread that asks, perhaps more than once.
        """
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


class _Shield:
    """Keeps a second signal out of a few steps that belong together."""

    def __init__(self) -> None:
        self.depth, self.pending = 0, False

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
        if self.pending and not self.depth:
            self.pending = False
            raise KeyboardInterrupt


_SHIELD = _Shield()


def shielded() -> contextlib.AbstractContextManager[None]:
    """A body that a second signal cannot cut in two; for a few quick steps."""
    return _SHIELD.up()


@contextlib.contextmanager
def stopping_on_signals(
    last_resort: Callable[[], None] | None = None,
) -> Iterator[Stop]:
    """A :class:`Stop` that the first SIGINT or SIGTERM requests.

    A second signal raises ``KeyboardInterrupt``.  Signals that the process ignores
    stay ignored; outside the main thread, where Python has no signals, the stop is
    only ever requested by the caller.

    Args:
        last_resort: called (from another thread) when a second signal has not been
            seen by the main thread for 1.5 s; it should end the process.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    seen = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        stop.request()
        if seen > 1:
            if _SHIELD.depth:
                _SHIELD.pending = True
            else:
                raise KeyboardInterrupt

    handled = [s for s in SIGNALS if signal.getsignal(s) is not signal.SIG_IGN]
    wake, bell = socket.socketpair()
    bell.setblocking(False)
    watcher = threading.Thread(
        target=_watch, args=(wake, stop, last_resort), name="signals", daemon=True
    )
    watcher.start()
    old_bell = signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
    old = {number: signal.signal(number, handle) for number in handled}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_bell)
        bell.close()  # ends the watcher
        watcher.join()
        wake.close()


def _watch(
    wake: socket.socket, stop: Stop, last_resort: Callable[[], None] | None
) -> None:
    """Ask for the end when the bell rings, and go on asking until the run is over."""
    count = 0
    while True:
        try:
            numbers = wake.recv(64)
        except TimeoutError:
            if count > 1 and last_resort is not None and not _SHIELD.depth:
                last_resort()
            stop.request()
            continue
        if not numbers:
            return
        count += sum(number in SIGNALS for number in numbers)
        if count:
            stop.request()
            wake.settimeout(_PATIENCE if count > 1 else _REMINDER)
