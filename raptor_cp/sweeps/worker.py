"""A worker process: points come in on standard input, figures go out on output.

Both are JSON, one document a line; the first line out says that the worker is warm.
The end of the input is the end of the worker, whatever it is doing: so no worker
outlives the process that started it, even when that one was killed.

A worker is a new interpreter, not a fork: a fork would copy the locks of threads that
do not exist in it (solver, compiled kernels), and would need a guarded main module.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading


def main() -> None:
    """Serve points until the input ends."""
    # Ctrl-C goes to every process of a terminal; the driver decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever else prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()

    from raptor_cp.sweeps.execution import run_payload

    importlib.import_module("raptor_cp.scheduler")  # now, not with the first point

    _send(answers.fileno(), {"ready": True})
    while True:
        _send(answers.fileno(), run_payload(requests.get().decode()))


def _read(requests: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def _send(descriptor: int, document: dict[str, object]) -> None:
    left = memoryview(json.dumps(document, allow_nan=False).encode() + b"\n")
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:  # nobody listens any more
        os._exit(0)
