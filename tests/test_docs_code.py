"""The code blocks of all pages and of the README do what the pages say.

See ``tests/docs_blocks.py`` for how a block is marked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.docs_blocks import INSTALLS, Block, Story, blocks, exclusion, updated

if TYPE_CHECKING:
    from pathlib import Path

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
RUNNABLE = ("sh", "python", "yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh folder with the shipped scenarios, as the pages assume it."""
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    # What a reader's terminal may set must not change what is compared.
    for name in ("FORCE_COLOR", "COLUMNS", "RAPTOR_CP_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _tell(page: Path, *, slow: bool) -> None:
    story = Story(slow=slow)
    for block in blocks(page):
        story.run(block)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
@pytest.mark.usefixtures("folder")
def test_page(page: Path) -> None:
    _tell(page, slow=False)


SLOW_PAGES = [
    page
    for page in PAGES
    if any(b.marker == "slow" or exclusion(b) == INSTALLS for b in blocks(page))
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", SLOW_PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)
@pytest.mark.usefixtures("folder")
def test_page_with_slow_blocks(page: Path) -> None:
    _tell(page, slow=True)


def _excluded() -> list[Block]:
    return [b for page in PAGES for b in blocks(page) if exclusion(b) is not None]


def test_excluded_blocks_have_a_reason_and_are_few() -> None:
    excluded = _excluded()
    assert all(len(exclusion(block) or "") >= 10 for block in excluded)
    runnable = [b for page in PAGES for b in blocks(page) if b.language in RUNNABLE]
    assert len(excluded) <= len(runnable) / 4, [block.place for block in excluded]


def test_a_wrong_block_fails(folder: Path) -> None:
    page = folder / "page.md"
    for text, complaint in (
        ("```sh\nraptor-cp schema --wrong\n```\n", "exit code 2, not 0"),
        ("```sh\nrm -rf /\n```\n", "'rm' is not run here"),
        ("```sh\nls scenarios/expected # exit code 1\n```\n", "exit code 0, not 1"),
        ("```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```\n", "printed\n1"),
        (
            "```python\nprint(1)\nprint(2)\n```\n<!-- output: part -->\n```text\n2\n1\n"
            "```\n",
            "no line '1'",
        ),
        ("```rust\n```\n", "language 'rust'"),
        ("```yaml\n- 1\n```\n", "not a mapping"),
    ):
        page.write_text(text, "utf-8")
        with pytest.raises(AssertionError, match=complaint.replace("(", r"\(")):
            _tell(page, slow=False)
    page.write_text("```yaml\npipeline: {stagez: 2}\n```\n", "utf-8")
    with pytest.raises(ValueError, match="stagez"):
        _tell(page, slow=False)


@pytest.mark.usefixtures("folder")
def test_outputs_are_rewritten_where_they_are_quoted(folder: Path) -> None:
    page = folder / "page.md"
    text = (
        "```python\nprint('a')\nprint('b')\n```\n\n<!-- output -->\n```text\n{}\n```\n"
        "\nand\n\n<!-- output -->\n```text\n{}\n```\n"
    )
    page.write_text(text.format("x", "y\nz\nw"), "utf-8")
    assert updated(page, slow=False) == text.format("a\nb", "a\nb")
