"""The documentation site: strict build, no network, complete references."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

import raptor_cp
from tests.conftest import ROOT

pytest.importorskip("mkdocs", reason="the docs extra is not installed")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from selenium.webdriver import Chrome

DOCS = ROOT / "docs"
HOOKS = DOCS / "hooks"
#: Window sizes: a desktop, and a phone held upright.
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as continuous integration builds it."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


class Loads(HTMLParser):
    """Addresses that a page fetches by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(values.get("href") or "")
        elif tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.found.append(values.get("src") or "")


def test_pages_fetch_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= 25
    for page in pages:
        text = page.read_text("utf-8")
        loads = Loads()
        loads.feed(text)
        for address in filter(None, loads.found):
            assert not re.match(r"(\w+:)?//", address), f"{page.name}: {address}"
        assert "<!-- generated" not in text, page.name
    for sheet in site.rglob("*.css"):
        rules = sheet.read_text("utf-8")
        assert not re.search(r"url\([\"']?(\w+:)?//|@import", rules), sheet.name


def test_schemas_are_on_the_site(site: Path) -> None:
    from raptor_cp.reports.schemas import SCHEMAS

    names = {path.stem for path in (site / "schemas").glob("*.json")}
    assert names == {"scenario", *SCHEMAS}


@pytest.fixture(scope="module")
def hooks() -> Iterator[ModuleType]:
    """The module of the hook."""
    sys.path.insert(0, str(HOOKS))
    yield importlib.import_module("generated_pages")
    sys.path.remove(str(HOOKS))


def test_every_generated_part_has_one_place(hooks: ModuleType) -> None:
    text = "".join(page.read_text("utf-8") for page in DOCS.rglob("*.md"))
    places = re.findall(r"<!-- generated: (\w+) -->", text)
    assert sorted(places) == sorted(hooks.GENERATED)


def test_every_scenario_key_is_explained(hooks: ModuleType) -> None:
    from raptor_cp.scenario import Scenario

    reference = importlib.import_module("reference_scenario")
    models = reference.definitions(Scenario.model_json_schema(by_alias=True))
    texts = reference.key_texts(DOCS / "reference")
    assert {name: sorted(model["properties"]) for name, model in models.items()} == {
        name: sorted(keys) for name, keys in texts.items()
    }, "docs/reference/scenario-keys.yaml and the models differ"
    listed = [name for _, _, names in reference.SECTIONS for name in names]
    assert sorted(listed) == sorted(models)
    assert all(
        str(text).endswith(".") for keys in texts.values() for text in keys.values()
    )


def test_every_command_and_option_is_listed(hooks: ModuleType) -> None:
    from typer.testing import CliRunner

    from raptor_cp.cli.app import app

    text = hooks.GENERATED["commands"]()
    reference = importlib.import_module("reference_cli")
    names = [name for name, _ in reference.public_commands()]
    shown = CliRunner().invoke(app, ["--help"]).output
    for name in names:
        assert f"## raptor-cp {name}\n" in text
        assert re.search(rf"\b{name}\b", shown), name
    for name in names:
        help_text = CliRunner().invoke(app, [name, "--help"]).output
        section = text.split(f"## raptor-cp {name}\n")[1].split("\n## ")[0]
        for option in set(re.findall(r"--[a-z][a-z-]+", help_text)) - {"--help"}:
            assert option in section, f"{name} {option}"


def test_every_call_of_the_api_is_listed(hooks: ModuleType) -> None:
    text = hooks.GENERATED["python"]()
    for name in raptor_cp.__all__:
        if inspect.isfunction(getattr(raptor_cp, name)):
            assert f"### {name}\n" in text
    assert ":func:" not in text


def test_every_key_of_a_report_is_listed(hooks: ModuleType) -> None:
    from raptor_cp.reports.schemas import SCHEMAS

    text = hooks.GENERATED["reports"]()
    for name in SCHEMAS:
        assert f"{{ #{name} }}" in text
    for key in ("budgets.packings", "cores[].items[] (wait).count", "queues[].window"):
        assert f"`{key}`" in text, key


def test_limits_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| (.+?) \| ([\d,]+) \| `(raptor_cp\.[\w.]+)\.([A-Z_]+)` \|",
        (DOCS / "reference" / "limits.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert len(rows) >= 25
    for what, value, module, name in rows:
        found = getattr(importlib.import_module(module), name)
        assert found == int(value.replace(",", "")), f"{what}: {module}.{name}"


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / target).exists(), target


def test_navigation_has_every_page() -> None:
    class Loader(yaml.SafeLoader):
        """The configuration has no tags of its own yet; a new one should fail here."""

    nav = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)["nav"]
    listed = re.findall(r"[\w/-]+\.md", str(nav))
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(pages)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    """A headless browser; skipped with a message where there is none."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is missing")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no chromium with chromedriver")
    options = selenium.ChromeOptions()
    options.binary_location = browser
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = selenium.ChromeService(executable_path=driver)
    found: Chrome = selenium.Chrome(options=options, service=service)
    yield found
    found.quit()


PAGES = (
    "index.html",
    "how/overview.html",
    "how/search.html",
    "reference/scenario.html",
    "reference/reports.html",
    "tutorials/architect.html",
)


@pytest.mark.parametrize("size", SIZES)
def test_pages_in_a_browser(site: Path, chrome: Chrome, size: str) -> None:
    """From the file system: no errors, no requests, nothing wider than the window."""
    width, height = SIZES[size]
    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )
    shots = os.environ.get("RAPTOR_CP_SCREENSHOTS")
    for page in PAGES:
        chrome.get((site / page).as_uri())
        complaints = [
            entry["message"]
            for entry in chrome.get_log("browser")  # type: ignore[no-untyped-call]
            if entry["level"] == "SEVERE"
        ]
        assert not complaints, f"{page}: {complaints}"
        requests = chrome.execute_script(
            "return performance.getEntriesByType('resource').map(e => e.name)"
        )
        assert all(name.startswith("file:") for name in requests), requests
        assert chrome.execute_script(
            "return document.documentElement.scrollWidth <= window.innerWidth"
        ), f"{page} is wider than {width} pixels"
        assert (
            chrome.execute_script("return document.querySelectorAll('h1').length") == 1
        )
        if shots:
            Path(shots).mkdir(parents=True, exist_ok=True)
            name = f"docs-{page.replace('/', '-').removesuffix('.html')}-{size}.png"
            chrome.save_screenshot(str(Path(shots) / name))


def test_search_works_from_files(site: Path, chrome: Chrome) -> None:
    chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chrome.get((site / "index.html").as_uri())
    chrome.execute_script(
        "const box = document.querySelector('input[name=query]');"
        "document.querySelector('[data-md-toggle=search]').click(); box.focus();"
        "box.value = 'boundary';"
        "box.dispatchEvent(new Event('input', {bubbles: true}));"
        "box.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}));"
    )
    until = time.monotonic() + 10
    while time.monotonic() < until:
        found = chrome.execute_script(
            "return [...document.querySelectorAll('.md-search-result__link')]"
            ".map(link => link.href)"
        )
        if found:
            break
        time.sleep(0.1)
    assert any("how/" in link for link in found), found
