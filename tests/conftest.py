"""Options and fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# A shell that starts the tests in the background has them ignore SIGINT, and every
# process they start would inherit that: the tests of Ctrl-C need it heard.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples are derived from the test's name, so every run tries the same ones; no
# deadline, because compiling a kernel on first use takes seconds.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        default="none",
        help="slow tests to run: none, all, or K/N for the K-th of N shares",
    )
    parser.addoption(
        "--pimsim",
        default=None,
        help="a simulator binary; timing comparisons against it run only with one",
    )
    parser.addoption(
        "--update-images",
        action="store_true",
        help="record the baselines of plots anew instead of comparing with them",
    )


def _share(text: str) -> tuple[int, int]:
    if text == "none":
        return 0, 1
    if text == "all":
        return 1, 1
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"--slow {text}: expected none, all or K/N")
    return int(part), int(parts)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    part, parts = _share(config.getoption("--slow"))
    slow = sorted((i for i in items if i.get_closest_marker("slow")), key=_node_id)
    for number, item in enumerate(slow):
        if part == 0 or number % parts != part - 1:
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow all"))


def _node_id(item: pytest.Item) -> str:
    return item.nodeid


@pytest.fixture(autouse=True)
def no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as they want unless a test says otherwise."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real inputs beside the checkout; tests that use them skip without them."""
    folder = Path(os.environ.get("RAPTOR_CP_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data folder at {folder} (set RAPTOR_CP_DATA)")
    return folder


@pytest.fixture
def pimsim(request: pytest.FixtureRequest) -> Path:
    """Path of the simulator given with ``--pimsim``."""
    given = request.config.getoption("--pimsim")
    if given is None:
        pytest.skip("no simulator: pass --pimsim PATH")
    return Path(given)
