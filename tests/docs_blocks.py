"""Code blocks of Markdown pages, and what runs them.

A page is a story: its blocks run in order, in one temporary folder, and its Python
blocks share their names.  What a block is comes from its fence and from an HTML comment
right above it:

* ```` ```sh ````: lines of ``raptor-cp``, ``cat`` or ``ls``; ``> FILE`` takes standard
  output; a comment ``# exit code N`` expects N.
* ```` ```python ````: executed.
* ```` ```yaml ````: a scenario or a part of one must load, a topology must load.
* ``title="FILE"`` writes the block to that file first.
* ``<!-- output -->`` above a ``text`` block: what the block before printed;
  ``<!-- output: part -->``: lines of it, in order.
* ``<!-- not run: REASON -->`` leaves a block out, ``<!-- slow -->`` runs it only among
  the slow tests.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from typer.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Iterator

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*) *(?P<attributes>.*)$")
_COMMENT = re.compile(r"^ *<!-- *(?P<text>.*?) *-->$")
_TITLE = re.compile(r'title="([^"]+)"')
_EXIT = re.compile(r"# exit code (\d)")
#: Reason of the blocks that set a virtual environment up.
INSTALLS = "installs packages"
#: Languages that are never run; their blocks are data or drawings.
PLAIN = ("text", "json", "html", "toml", "")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    language: str
    title: str
    marker: str
    text: str

    @property
    def place(self) -> str:
        """File and line, for failures."""
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Fenced blocks of a page in order."""
    lines = page.read_text("utf-8").splitlines()
    marker, at = "", 0
    while at < len(lines):
        comment, fence = _COMMENT.match(lines[at]), _FENCE.match(lines[at])
        if fence is None:
            if comment is not None:
                marker = comment["text"]
            elif lines[at].strip():
                marker = ""
            at += 1
            continue
        start, indent = at, len(fence["indent"])
        body = []
        at += 1
        while lines[at].strip() != "```":
            body.append(lines[at][indent:])
            at += 1
        at += 1
        title = _TITLE.search(fence["attributes"])
        yield Block(
            page,
            start + 1,
            fence["language"],
            title[1] if title else "",
            marker,
            "\n".join(body) + "\n",
        )
        marker = ""


def exclusion(block: Block) -> str | None:
    """Why a block is not run; None when it is."""
    if block.marker.startswith("not run:"):
        return block.marker.removeprefix("not run:").strip()
    if block.language == "sh" and "pip install" in block.text:
        return INSTALLS
    return None


class Story:
    """Runs the blocks of one page in the current folder."""

    def __init__(self, *, slow: bool) -> None:
        self._slow = slow
        self._printed = ""
        self._names: dict[str, object] = {"__name__": "page"}
        self._ran = False

    def run(self, block: Block) -> None:
        """Run or check one block.

        Raises:
            AssertionError: it does not do what the page says.
        """
        if block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, "utf-8")
        if block.marker.startswith("output"):
            if self._ran:
                self._compare(block)
            return
        reason = exclusion(block)
        if reason == INSTALLS and self._slow and "raptor-cp" in block.text:
            # The command behind the installation is run without it.
            command = block.text.strip().rsplit("bin/", 1)[1]
            block = replace(block, text=f"{command}\n")
        elif reason is not None:
            self._ran = False
            return
        if block.marker == "slow" and not self._slow:
            self._ran = False
            return
        if block.language == "sh":
            self._shell(block)
        elif block.language in ("python", "pycon"):
            self._python(block)
        elif block.language == "yaml":
            self._yaml(block)
        else:
            if block.language not in PLAIN:
                raise AssertionError(f"{block.place}: language {block.language!r}")
            return
        self._ran = True

    @property
    def printed(self) -> str | None:
        """What the last block printed; None when it was left out."""
        return self._printed if self._ran else None

    def _compare(self, block: Block) -> None:
        wanted = block.text.strip("\n").splitlines()
        found = [line.rstrip() for line in self._printed.strip("\n").splitlines()]
        if block.marker == "output":
            if found != [line.rstrip() for line in wanted]:
                shown = "\n".join(found)
                raise AssertionError(
                    f"{block.place}: printed\n{shown}\n"
                    "(python docs/hooks/update_outputs.py rewrites what pages quote)"
                )
            return
        rest = iter(found)
        for line in wanted:
            if line.strip() in ("...", ""):
                continue
            if not any(line.rstrip() == other for other in rest):
                shown = "\n".join(found)
                raise AssertionError(
                    f"{block.place}: no line {line!r} (in this order) in\n{shown}"
                )

    def _shell(self, block: Block) -> None:
        self._printed = ""
        for number, line in enumerate(block.text.replace("\\\n", " ").splitlines()):
            words = shlex.split(line, comments=True)
            if not words:
                continue
            expected = _EXIT.search(line)
            wanted = int(expected[1]) if expected else 0
            target = ""
            if ">" in words:
                place = words.index(">")
                target = words[place + 1]
                del words[place : place + 2]
            code, out, shown = _command(words, f"{block.place}+{number}")
            if target:
                Path(target).write_text(out, "utf-8")
            else:
                self._printed += shown
            if code != wanted:
                raise AssertionError(
                    f"{block.place}: {line!r} ended with exit code {code}, not "
                    f"{wanted}:\n{shown}"
                )

    def _python(self, block: Block) -> None:
        printed = io.StringIO()
        code = compile("\n" * block.line + block.text, str(block.page), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, self._names)
        self._printed = printed.getvalue()

    def _yaml(self, block: Block) -> None:
        document = yaml.safe_load(block.text)
        self._printed = ""
        if not isinstance(document, dict):
            raise AssertionError(f"{block.place}: not a mapping")
        if set(document) <= {"pe", "links"}:
            from raptor_cp.targets.pe.topology import PeTopology

            path = Path(block.title or "part-of-a-page.yaml")
            path.write_text(block.text, "utf-8")
            PeTopology.load(path)
            return
        if document.get("schema") == "raptor-cp/sweep/1":
            from raptor_cp.sweeps import sweep_from_mapping

            sweep_from_mapping(document)
            return
        from raptor_cp.api import load

        base: dict[str, object] = {
            "schema": "raptor-cp/1",
            "name": "part",
            "network": {"zoo": "tiny-residual"},
            "target": {"kind": "pim"},
        }
        load(document if "schema" in document else base | document)


def _command(words: list[str], place: str) -> tuple[int, str, str]:
    """Exit code, standard output, and all that a person sees."""
    name, *rest = words
    if name == "raptor-cp":
        from raptor_cp.cli.app import app

        result = CliRunner().invoke(app, rest)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.stdout, result.output
    if name == "cat":
        text = "".join(Path(path).read_text("utf-8") for path in rest)
        return 0, text, text
    if name == "ls":
        (folder,) = rest or ["."]
        names = sorted(p.name + "/" * p.is_dir() for p in Path(folder).iterdir())
        text = "".join(f"{entry}\n" for entry in names)
        return 0, text, text
    raise AssertionError(
        f"{place}: {name!r} is not run here; mark the block <!-- not run: reason -->"
    )


def updated(page: Path, *, slow: bool) -> str:
    """The page with every ``<!-- output -->`` block as its blocks print it now."""
    lines = page.read_text("utf-8").splitlines()
    story = Story(slow=slow)
    changes: list[tuple[int, int, list[str]]] = []
    for block in blocks(page):
        if block.marker == "output":
            if story.printed is not None:
                first = block.line
                last = first + block.text.count("\n")
                printed = story.printed.strip("\n").splitlines()
                changes.append((first, last, [line.rstrip() for line in printed]))
        else:
            story.run(block)
    for first, last, printed in reversed(changes):
        indent = " " * (len(lines[first - 1]) - len(lines[first - 1].lstrip()))
        lines[first:last] = [indent + line if line else "" for line in printed]
    return "\n".join(lines) + "\n"
