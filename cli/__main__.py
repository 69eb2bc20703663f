"""``python -m raptor_cp.cli``: the same command without the console script."""

from raptor_cp.cli.app import main

main()
