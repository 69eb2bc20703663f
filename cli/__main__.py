"""``python -m raptor_cp.cli``: the same command without the console script."""

from __future__ import annotations

from raptor_cp.cli.entry import main

main()
