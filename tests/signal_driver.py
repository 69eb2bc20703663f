"""Runs commands in processes of their own that get a signal at an exact moment.

``python signal_driver.py JOBS.json`` where a job is ``{"moment", "signals", "args",
"folder"}``; writes ``exit``, ``stdout`` and ``stderr`` into the job's folder.  The
processes are forks of one that has imported everything, so a job takes a moment.

Moments: ``phase NAME``, ``evaluated N``, ``begin N`` (N-th run of many), ``file
NAME`` (before it is written), ``rename N`` (N-th rename of a folder), ``solve``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from raptor_cp.cli.app import app
from raptor_cp.cli.progress import SearchProgress
from raptor_cp.reports import files
from raptor_cp.run_output import write_run
from raptor_cp.scenario import load
from raptor_cp.scheduler import schedule

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent


def at(moment: str, numbers: list[int]) -> None:
    """Send the signals to this process when the moment comes."""
    kind, _, rest = moment.partition(" ")
    seen = 0

    def fire() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **kwargs: object) -> object:
            nonlocal seen
            seen += 1
            if seen == int(rest):
                fire()
            return call(*args, **kwargs)

        return wrapper

    def named(call: Callable[..., object], which: int) -> Callable[..., object]:
        def wrapper(*args: object, **kwargs: object) -> object:
            given = args[which]
            if (given.name if isinstance(given, Path) else given) == rest:
                fire()
            return call(*args, **kwargs)

        return wrapper

    if kind == "phase":
        SearchProgress.phase = named(SearchProgress.phase, 1)  # type: ignore[method-assign, assignment]
    elif kind == "evaluated":
        SearchProgress.evaluated = counted(SearchProgress.evaluated)  # type: ignore[method-assign, assignment]
    elif kind == "begin":
        SearchProgress.begin = counted(SearchProgress.begin)  # type: ignore[method-assign, assignment]
    elif kind == "file":
        # write_json and write_text go through it, by its name in the module
        files.write_bytes = named(files.write_bytes, 0)  # type: ignore[assignment]
    elif kind == "rename":
        Path.rename = counted(Path.rename)  # type: ignore[method-assign, assignment]
    elif kind != "never":
        raise ValueError(moment)


def child(job: dict[str, object]) -> None:
    """One job; does not return."""
    folder = Path(str(job["folder"]))
    os.chdir(folder)
    sys.argv = ["raptor-cp"]
    for number, name in ((1, "stdout"), (2, "stderr")):
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
    code = 99
    try:
        numbers, args = job["signals"], job["args"]
        assert isinstance(numbers, list)
        assert isinstance(args, list)
        at(str(job["moment"]), numbers)
        # As the arguments of a process are: bytes, whatever the locale.
        app([os.fsdecode(arg.encode()) for arg in args], standalone_mode=True)
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 98
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    (folder / "exit").write_text(str(code))
    os._exit(0)


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text())
    # Everything is imported and compiled before the first fork.
    warm = schedule(load(ROOT / "scenarios" / "tiny-residual.yaml"), program=True)
    write_run(warm, Path(sys.argv[1]).parent / "warm")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for job in jobs:
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            child(job)
        os.waitpid(process, 0)


if __name__ == "__main__":
    main()
