"""Entry point of the console script: imports are inside, so Ctrl-C is a sentence."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; interrupted while it is loading, exit code 3."""
    try:
        from raptor_cp.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        raise SystemExit(3) from None
    run()
