"""One driver at a time: a lock that the operating system drops with its process."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from raptor_cp.errors import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold ``<database>.lock`` while the body runs.

    The lock is the kernel's: what a killed process leaves behind is only a file.

    Raises:
        MalformedInput: another process holds it, or the place cannot be written to.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        raise MalformedInput(
            "sweeps need file locks, which this system does not have",
            where=str(database),
        ) from None
    path = database.with_name(database.name + ".lock")
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise MalformedInput(
                f"cannot be written: {error.strerror}", where=str(path)
            ) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                raise MalformedInput(
                    "another sweep is writing this file"
                    + (f" (process {holder})" if holder else ""),
                    where=str(database),
                    hint="wait for it, or give another --out",
                ) from None
            if not _still_there(path, descriptor):
                continue  # its last holder has removed it: that lock guards nothing
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(descriptor)


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
