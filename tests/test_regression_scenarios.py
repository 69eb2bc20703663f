"""Every shipped scenario gives its expected and its recorded results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raptor_cp.regression import regress
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_gives_its_recorded_result(path: Path) -> None:
    case = regress(path)
    assert case.recorded, "record it: raptor-cp regress --update"
    assert not case.differences, case.differences
    result = case.result
    assert result is not None
    if result.search is not None:
        budget = result.search.budget
        assert budget.queue_evaluations.used <= budget.queue_evaluations.limit <= 32
        assert budget.packings.used <= budget.packings.limit <= 128
        assert budget.beam <= 2
        assert budget.largest_round <= 2
        assert budget.largest_shortlist <= 64
    certificate = result.certificate
    if certificate is not None and result.interval_ns is not None:
        assert certificate.bound_interval_ns is not None
        assert certificate.bound_interval_ns <= result.interval_ns
