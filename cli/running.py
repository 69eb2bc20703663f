"""What every command shares: consoles, error sentences, exit codes.

Exit codes: 0 done; 1 proved infeasible, or an expectation failed; 2 malformed input;
3 budget spent or timing unproved; 4 internal error.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import typer

from raptor_cp.errors import MalformedInput, RaptorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

EXIT_INTERRUPTED = 3


def console(*, quiet: bool = False) -> Console:
    """The console for people: standard error, plain when it is no terminal."""
    from rich.console import Console

    return Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)


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
        try:
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


def _complain(sentence: str) -> None:
    # Plain text: a path or a value in brackets must not be read as markup.
    encoding = sys.stderr.encoding or "ascii"
    line = f"error: {sentence}\n"
    sys.stderr.write(line.encode(encoding, "backslashreplace").decode(encoding))
