"""Rewrites the outputs that pages quote: ``python docs/hooks/update_outputs.py``.

Runs the blocks of each page as the tests do and puts what they print now into the
blocks marked ``<!-- output -->``; without arguments, for all pages and the README.
Look at the difference before you commit it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main(pages: list[str]) -> None:
    """Update the pages given as paths, or all."""
    sys.path.insert(0, str(ROOT))
    from tests.docs_blocks import updated

    everything = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    paths = [Path(page).resolve() for page in pages] or everything
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            Path("scenarios").symlink_to(ROOT / "scenarios")
            text = updated(path, slow=True)
            os.chdir(ROOT)
        if text != path.read_text("utf-8"):
            path.write_text(text, "utf-8")
            print(f"updated {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
