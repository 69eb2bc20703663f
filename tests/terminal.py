"""A command on a terminal of 80 columns."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def on_terminal(
    arguments: list[str],
    folder: Path,
    *,
    until: bytes = b"",
    send: int = 0,
    environment: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    """(exit code, output) of a command on a terminal of 80 columns.

    When ``until`` has been seen, the signal ``send`` is sent.
    """
    master, slave = pty.openpty()
    os.set_inheritable(slave, True)
    env = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": "80",
        "LINES": "24",
        **(environment or {}),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "raptor_cp.cli", *arguments],
        stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env,
    )  # fmt: skip
    os.close(slave)
    seen = b""
    sent = not until
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the terminal's other side is closed
            break
        if not part:
            break
        seen += part
        if not sent and until in seen:
            process.send_signal(send)
            sent = True
    os.close(master)
    return process.wait(timeout=60), seen
