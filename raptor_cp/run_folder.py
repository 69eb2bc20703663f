"""Run folders: written beside their final place, then renamed into it.

A folder is replaced only when it is a run of ours (it has the marker file), so a
mistyped ``--out`` cannot destroy anything; a killed run leaves the old one whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput
from raptor_cp.interruption import shielded

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Temporary folders of runs that are being written.
_UNFINISHED: list[Path] = []

MARKER = "run.json"
MARKER_TEXT = '{"schema": "raptor-cp/run/1"}\n'


def check_replaceable(folder: Path) -> None:
    """Refuse a place that holds something else, before any work is done.

    Raises:
        MalformedInput: the place exists and is neither empty nor a run of ours.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise MalformedInput("is a file", where=str(folder), expected="a run folder")
    if any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise MalformedInput(
            "is not a run folder and is not empty, so it is left alone",
            where=str(folder),
            expected="a new or empty folder, or a run of raptor-cp",
            hint="choose another --out",
        )


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``folder`` when the body succeeds."""
    check_replaceable(folder)
    parent = folder.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=parent))
    _UNFINISHED.append(fresh)
    try:
        # mkdtemp is private to the user; a run folder follows the user's umask.
        umask = os.umask(0)
        os.umask(umask)
        fresh.chmod(0o777 & ~umask)
        (fresh / MARKER).write_text(MARKER_TEXT, encoding="utf-8")
        yield fresh
        with shielded():  # between two renames there is no run at all
            _swap(fresh, folder.absolute())
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        _UNFINISHED.remove(fresh)


def discard_unfinished() -> None:
    """Remove what is half written; for a process that ends without unwinding."""
    for fresh in tuple(_UNFINISHED):
        shutil.rmtree(fresh, ignore_errors=True)


def _swap(fresh: Path, folder: Path) -> None:
    if not folder.exists():
        fresh.rename(folder)
        return
    check_replaceable(folder)  # it may have changed meanwhile
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    folder.rename(old / "run")
    try:
        fresh.rename(folder)
    except OSError:
        (old / "run").rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
