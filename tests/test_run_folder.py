"""Run folders: complete or absent, and never in the place of something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.run_folder import MARKER, check_replaceable, replacing

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_new_folder_and_its_parents_are_made(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with replacing(target) as fresh:
        (fresh / "x").write_text("1")
        assert not target.exists()
    assert names(target) == [MARKER, "x"] or names(target) == sorted([MARKER, "x"])
    assert names(tmp_path / "a") == ["b"]


def test_run_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "run"
    for content in ("old", "new"):
        with replacing(target) as fresh:
            (fresh / content).write_text("")
    assert names(target) == sorted([MARKER, "new"])
    assert names(tmp_path) == ["run"]


def test_failure_leaves_the_old_run_and_no_rubbish(tmp_path: Path) -> None:
    target = tmp_path / "run"
    with replacing(target) as fresh:
        (fresh / "old").write_text("")

    def fail() -> None:
        with replacing(target) as fresh:
            (fresh / "half").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert names(target) == sorted([MARKER, "old"])
    assert names(tmp_path) == ["run"]


def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(MalformedInput, match="left alone"):
        check_replaceable(tmp_path)
    with pytest.raises(MalformedInput, match="left alone"), replacing(tmp_path):
        pass
    assert names(tmp_path) == ["thesis.tex"]


def test_file_in_the_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text("x")
    with pytest.raises(MalformedInput, match="is a file"):
        check_replaceable(path)


def test_empty_folder_is_taken(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    with replacing(target) as fresh:
        (fresh / "x").write_text("")
    assert "x" in names(target)
