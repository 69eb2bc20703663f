"""What only turns out while instructions are made ends as a refusal, too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from raptor_cp.cli.schedule import schedule
from raptor_cp.targets.pim.codegen import CoreCode
from raptor_cp.targets.pim.lowering_common import NotEmitted

if TYPE_CHECKING:
    from pathlib import Path

SCENARIO = """
schema: raptor-cp/1
name: small
network: {zoo: tiny-residual}
target: {kind: pim, config: arch-a, cores: 12}
solver: {enabled: false}
"""
MODES = ["mode: latency\n", "mode: pipeline\npipeline: {stages: 3}\n"]


def run(scenario: Path, folder: Path) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(schedule)
    done = CliRunner().invoke(app, [str(scenario), "--out", str(folder)])
    return done.exit_code, done.output


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("earlier", [False, True])
def test_an_operand_in_pieces_during_emission_is_a_refusal(
    mode: str, earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule stands, the reason is told, and nothing of a program is left."""
    scenario, folder = tmp_path / "small.yaml", tmp_path / "run"
    scenario.write_text(SCENARIO + mode)
    if earlier:
        assert run(scenario, folder)[0] == 0
        assert (folder / "program" / "config.json").is_file()
    emit, emitted = CoreCode.emit, []

    def fails_on_the_second_core(code: CoreCode, *, native: bool = False) -> object:
        emitted.append(code.core)
        if len(set(emitted)) > 1:
            raise NotEmitted("conv1: an operand does not lie in one piece")
        return emit(code, native=native)

    monkeypatch.setattr(CoreCode, "emit", fails_on_the_second_core)
    code, output = run(scenario, folder)
    assert code == 0
    assert "program: refused" in output
    assert "conv1: an operand does not lie in one piece" in output
    document = json.loads((folder / "result.json").read_text())
    assert document["program"] == "refused"
    assert document["program_reasons"] == [
        "conv1: an operand does not lie in one piece"
    ]
    assert (folder / "schedule.json").is_file()
    assert not (folder / "program").exists()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]


def test_a_program_that_cannot_be_written_leaves_the_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, folder = tmp_path / "small.yaml", tmp_path / "run"
    scenario.write_text(SCENARIO + MODES[1])
    assert run(scenario, folder)[0] == 0

    def content() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    before = content()
    emit, emitted = CoreCode.emit, []

    def disk_full(code: CoreCode, *, native: bool = False) -> object:
        emitted.append(code.core)
        if len(emitted) > len(set(emitted)):  # written, after the trial
            raise OSError(28, "No space left on device")
        return emit(code, native=native)

    monkeypatch.setattr(CoreCode, "emit", disk_full)
    code, output = run(scenario, folder)
    assert code != 0
    assert "No space left on device" in output
    assert content() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]
