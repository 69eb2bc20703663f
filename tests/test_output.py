"""Every command prints correctly: plain, into a pipe, in ASCII, in 80 columns."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT
from tests.terminal import on_terminal

if TYPE_CHECKING:
    from pathlib import Path

SCENARIOS = ROOT / "scenarios"
TINY = str(SCENARIOS / "tiny-residual.yaml")

#: No locale, no UTF-8 mode, no way back to it, no colours.
ASCII = {
    "LC_ALL": "C",
    "LANG": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "NO_COLOR": "1",
}
ENVIRONMENTS = {
    "ascii": ASCII,
    "LANG=C": {"LANG": "C", "LC_ALL": "", "LC_CTYPE": ""},
    "io": {"PYTHONIOENCODING": "ascii", "NO_COLOR": "1"},
    "utf-8": {"PYTHONUTF8": "1"},
}

#: A task's name, a file's name and a folder's name that ASCII does not have.
UNICODE = """\
schema: raptor-cp/1
name: chain
network:
  tasks:
    - {id: "größe→1", execution_ns: 5, weights: ["gewicht-ß"]}
    - {id: "層二", execution_ns: 7, weights: [v]}
  edges: [{src: "größe→1", dst: "層二", bytes: 8}]
  weights: [{id: "gewicht-ß", slots: 3}, {id: v, slots: 4}]
target:
  {kind: table, cores: 2, slots_per_core: 5,
   memory: {width: 4, read_ns: 1, write_ns: 1}}
pipeline: {stages: 2}
"""

#: name -> (arguments, exit code, on standard output)
COMMANDS: dict[str, tuple[list[str], int, str]] = {
    "schedule": (["schedule", TINY, "--timing"], 0, "nothing"),
    "schedule --json": (["schedule", TINY, "--json", "--quiet"], 0, "json"),
    "schedule unicode": (["schedule", "kette-ä.yaml", "--out", "läufe"], 0, "nothing"),
    "schedule infeasible": (
        ["schedule", str(SCENARIOS / "vgg16-arch-a-infeasible.yaml")], 0, "nothing",
    ),
    "check": (["check", TINY], 0, "nothing"),
    "compare": (["compare", TINY], 0, "nothing"),
    "compare --csv": (["compare", "kette-ä.yaml", "--csv", "-q"], 0, "text"),
    "regress": (["regress", "kette-ä.yaml", "--junit", "j.xml"], 1, "nothing"),
    "zoo": (["zoo"], 0, "text"),
    "targets": (["targets"], 0, "text"),
    "schema": (["schema"], 0, "json"),
    "network": (["network", "googlenet"], 0, "text"),
    "dispatch": (
        ["dispatch", "gqa_decode_opt3", "--sweep", "R=0.0625,0.125"], 0, "nothing",
    ),
    "--help": (["--help"], 0, "text"),
    "regress --help": (["regress", "--help"], 0, "text"),
    "usage": (["schedule", "--größe"], 2, "nothing"),
    "no file": (["schedule", "nichts-ß.yaml"], 2, "nothing"),
    "wrong": (["schedule", "kette-ä.yaml", "--set", "network.käse=1"], 2, "nothing"),
    "no run": (["verify", "nichts-ß"], 2, "nothing"),
    "no program": (
        ["periodic", "nichts-ß.json", "--pim-target-config", "arch-a"], 2, "nothing",
    ),
}  # fmt: skip
#: Those whose tables are wide; the rest runs on a terminal when there is time.
WIDE = ("schedule unicode", "compare", "network", "dispatch", "no file")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kette-ä.yaml").write_text(UNICODE, encoding="utf-8")
    return tmp_path


def piped(
    arguments: list[str | bytes], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | environment
    return subprocess.run(
        [sys.executable, "-m", "raptor_cp.cli", *arguments],
        cwd=folder, env=env, capture_output=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All commands in ASCII, in processes of one that has imported everything."""
    base = tmp_path_factory.mktemp("ascii")
    jobs = []
    for number, (arguments, _, _) in enumerate(COMMANDS.values()):
        folder = base / str(number)
        folder.mkdir()
        (folder / "kette-ä.yaml").write_text(UNICODE, encoding="utf-8")
        job = {"moment": "never", "signals": [], "args": arguments}
        jobs.append({**job, "folder": str(folder)})
    (base / "jobs.json").write_text(json.dumps(jobs))
    driver = [sys.executable, str(ROOT / "tests" / "signal_driver.py")]
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | ASCII
    subprocess.run([*driver, str(base / "jobs.json")], check=True, env=env, timeout=300)
    return base


def check(
    name: str,
    done: subprocess.CompletedProcess[bytes],
    folder: Path,
    environment: dict[str, str],
) -> None:
    _, code, answer = COMMANDS[name]
    everything = done.stdout + done.stderr
    assert done.returncode == code, everything.decode(errors="replace")
    assert b"\x1b" not in everything
    assert b"Traceback" not in everything
    assert b"internal error" not in everything
    if environment.get("PYTHONUTF8") != "1":
        assert everything.isascii() or "PYTHONIOENCODING" not in environment
    if environment is ASCII:
        assert everything.isascii()
    if answer == "json":
        json.loads(done.stdout)
        assert done.stderr == b""
    elif answer == "nothing":
        assert done.stdout == b""
        assert done.stderr
    else:
        assert done.stdout
    if code == 2 and name != "usage":
        assert re.fullmatch(rb"error: .*\n", done.stderr)
    if name == "regress":
        ElementTree.parse(folder / "j.xml")


@pytest.mark.parametrize("name", COMMANDS)
def test_plain_and_in_ascii(name: str, outcomes: Path) -> None:
    folder = outcomes / str(list(COMMANDS).index(name))
    done = subprocess.CompletedProcess(
        name,
        int((folder / "exit").read_text()),
        (folder / "stdout").read_bytes(),
        (folder / "stderr").read_bytes(),
    )
    check(name, done, folder, ASCII)


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_into_a_pipe(name: str, environment: str, folder: Path) -> None:
    done = piped([*COMMANDS[name][0]], folder, ENVIRONMENTS[environment])
    check(name, done, folder, ENVIRONMENTS[environment])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in WIDE else pytest.mark.slow)
        for name in COMMANDS
    ],
)
def test_in_80_columns(name: str, folder: Path) -> None:
    arguments, code, answer = COMMANDS[name]
    status, seen = on_terminal(arguments, folder, environment=ASCII)
    text = seen.decode("ascii")
    assert status == code, text
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", text)  # NO_COLOR
    if answer == "json" or "--csv" in arguments:
        return  # for machines: whole lines
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    if name == "usage":
        return  # the library of the options measures before it escapes
    for line in re.split(r"\r?\n|\r", plain):
        assert len(line) <= 80, line


@pytest.mark.parametrize(
    "environment", [pytest.param(ASCII, marks=pytest.mark.slow), {"PYTHONUTF8": "1"}]
)
def test_a_name_that_is_no_text(folder: Path, environment: dict[str, str]) -> None:
    """A byte that no encoding has, in the name of a file that is, or is not, there."""
    done = piped(["schedule", b"nichts-\xff.yaml"], folder, environment)
    assert done.returncode == 2
    assert re.fullmatch(rb"error: .*no such file.*\n", done.stderr), done.stderr
    os.rename(folder / "kette-ä.yaml", os.fsencode(folder) + b"/da-\xff.yaml")
    arguments: list[str | bytes] = ["schedule", b"da-\xff.yaml", "--out"]
    done = piped([*arguments, b"lauf-\xff"], folder, environment)
    assert done.returncode == 0, done.stderr
    assert b"written to lauf-" in done.stderr


def test_the_same_files_whatever_the_locale(folder: Path, outcomes: Path) -> None:
    arguments: list[str | bytes] = [*COMMANDS["schedule unicode"][0], "--quiet"]
    done = piped(arguments, folder, ENVIRONMENTS["utf-8"])
    assert done.returncode == 0, done.stderr
    number = list(COMMANDS).index("schedule unicode")
    for name in ("schedule.json", "scenario.yaml"):
        written = (folder / "läufe" / name).read_bytes()
        assert written == (outcomes / str(number) / "läufe" / name).read_bytes()
        assert "größe→1" in written.decode()


def test_csv_and_json_into_a_closed_pipe(folder: Path) -> None:
    command = (
        f"{sys.executable} -m raptor_cp.cli schema | head -c 10 >/dev/null; "
        "exit ${PIPESTATUS[0]}"
    )
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
