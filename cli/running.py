"""What every command shares: consoles, error sentences, exit codes.

Exit codes: 0 done; 1 proved infeasible, or an expectation failed; 2 malformed input;
3 budget spent, timing unproved, or interrupted; 4 internal error.

On a terminal sentences are folded between words; into a pipe each sentence stays one
line.  Characters that the stream's encoding does not have appear as escapes.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import signal
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import typer

from raptor_cp.errors import MalformedInput, RaptorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from rich.console import Console

    from raptor_cp.interruption import Stop

P = ParamSpec("P")
R = TypeVar("R")

EXIT_INTERRUPTED = 3


def console(*, quiet: bool = False) -> Console:
    """The console for people: standard error, plain when it is no terminal."""
    from rich.console import Console

    screen = Console(stderr=True, quiet=quiet, highlight=False)
    screen.soft_wrap = not screen.is_terminal
    return screen


def answer_width() -> int:
    """Columns for tables that are a command's answer, on standard output.

    Into a pipe every row is one line, unless COLUMNS says how wide lines may be.
    """
    shown = sys.stdout is not None and sys.stdout.isatty()
    if not shown and not os.environ.get("COLUMNS"):
        return 10_000
    return shutil.get_terminal_size().columns


def print_columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output; numbers to the right, the last column is folded."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, title in enumerate(titles):
        cells = [row[number] for row in rows]
        right = all(cell[:1].isdigit() or cell == "-" for cell in cells)
        last = number == len(titles) - 1
        table.add_column(
            title, justify="right" if right else "left", no_wrap=not last,
            overflow="fold",
        )  # fmt: skip
    for row in rows:
        table.add_row(*row)
    Console(width=answer_width(), highlight=False, markup=False).print(table)


def visible(text: str) -> str:
    """The text with control characters as escapes.

    Names come from files: they must not colour, move or hide what a terminal shows.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\xa0" else repr(c)[1:-1] for c in text
    )


def printable(text: str) -> str:
    """The text as standard error will show it, so that its width is known."""
    text = visible(text)
    encoding = (None if sys.stderr is None else sys.stderr.encoding) or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def say(screen: Console, text: str, indent: int = 2) -> None:
    """Print a sentence (markup) with its folded lines under its first word."""
    from rich.padding import Padding

    text = printable(text)
    if screen.soft_wrap:
        screen.print(" " * indent + text)
    else:
        screen.print(Padding(text, (0, 0, 0, indent), expand=False))


@contextlib.contextmanager
def interruptible() -> Iterator[Stop]:
    """A stop that the first Ctrl-C or SIGTERM requests; the second ends at once."""
    from raptor_cp.interruption import stopping_on_signals

    with stopping_on_signals(_end_now) as stop:
        yield stop


def _end_now() -> None:
    """The process cannot unwind (it is in compiled code): leave no half folder."""
    from raptor_cp.run_folder import discard_unfinished

    discard_unfinished()
    cursor = b"\x1b[?25h\r\n" if os.isatty(2) else b""
    with contextlib.suppress(OSError):
        os.write(2, cursor + b"error: interrupted twice, ended at once\n")
    os._exit(EXIT_INTERRUPTED)


def print_json(document: object) -> None:
    """Machine output on standard output, the same bytes for the same document."""
    if sys.stdout is None:
        raise MalformedInput("standard output is closed", where="--json")
    text = json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """Turn errors into one sentence on standard error and an exit code."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        _encode_everything()
        try:
            with _terminable():
                return command(*args, **kwargs)
        except RaptorError as error:
            from raptor_cp.cli.fusion_advice import with_advice

            _complain(str(with_advice(error)))
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            _complain("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # The reader has gone (`| head`): nothing is wrong, nobody is listening.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            _complain(f"{place}{error.strerror or error}")
            raise typer.Exit(2) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if os.environ.get("RAPTOR_CP_TRACEBACK"):
                raise
            _complain(
                f"internal error: {type(error).__name__}: {error}; please report it "
                "(RAPTOR_CP_TRACEBACK=1 shows where)"
            )
            raise typer.Exit(4) from None

    return wrapper


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM, as batch systems send it, ends a command as Ctrl-C does."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _encode_everything() -> None:
    """Names and paths may hold anything; printing them must never fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _complain(sentence: str) -> None:
    # Plain text: a path or a value in brackets must not be read as markup.
    if sys.stderr is None:
        return
    line = printable(f"error: {sentence}")
    if sys.stderr.isatty():
        line = textwrap.fill(
            line,
            shutil.get_terminal_size().columns,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    sys.stderr.write(line + "\n")
