"""The HTML report in a browser: headless Chromium on loopback.

Screenshots are kept in ``build/screenshots``, or where ``RAPTOR_CP_ARTIFACTS`` says.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import raptor_cp as rc
from tests.conftest import ROOT
from tests.test_report import EVERY

pytest.importorskip("selenium")

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no chromium and chromedriver (Debian: chromium, chromium-driver)",
)
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--hide-scrollbars"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
SCREENSHOTS = (
    Path(os.environ.get("RAPTOR_CP_ARTIFACTS", ROOT / "build")) / "screenshots"
)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder of runs, and its address on loopback."""
    folder = tmp_path_factory.mktemp("site")
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def _browser(profile: Path, *, scripts: bool = True) -> webdriver.Chrome:
    options = Options()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    if not scripts:
        options.add_experimental_option(
            "prefs", {"profile.managed_default_content_settings.javascript": 2}
        )
    return webdriver.Chrome(options=options, service=Service(DRIVER))


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    driver = _browser(tmp_path / "profile")
    yield driver
    driver.quit()


def _as(driver: webdriver.Chrome, width: int, scheme: str) -> None:
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )


def _requested(driver: webdriver.Chrome, page: str) -> list[str]:
    """Addresses that a page asks for; the browser's own start page asks for more."""
    found = []
    for entry in driver.get_log("performance"):  # type: ignore[no-untyped-call]
        message: dict[str, Any] = json.loads(entry["message"])["message"]
        if (
            message["method"] == "Network.requestWillBeSent"
            and message["params"]["documentURL"] == page
        ):
            found.append(str(message["params"]["request"]["url"]))
    return found


@pytest.fixture(scope="module")
def tiny(site: tuple[Path, str]) -> str:
    folder, address = site
    rc.schedule(ROOT / "scenarios" / "tiny-residual.yaml", out=folder / "tiny")
    return f"{address}/tiny/report.html"


def test_every_section_no_error_no_request(
    browser: webdriver.Chrome, tiny: str
) -> None:
    browser.get(tiny)
    shown = browser.execute_script(
        "return [...document.querySelectorAll('section')]"
        ".filter(s => s.getBoundingClientRect().height > 40).map(s => s.id)"
    )
    assert set(EVERY) <= set(shown)
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    urls = _requested(browser, tiny)
    assert tiny in urls
    host = tiny.split("/tiny/")[0]
    assert all(url.startswith((host, "data:")) for url in urls), urls


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_fits_the_screen_and_is_legible(
    width: int, scheme: str, browser: webdriver.Chrome, tiny: str
) -> None:
    _as(browser, width, scheme)
    browser.get(tiny)
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    paper, ink = browser.execute_script(
        "const s = getComputedStyle(document.body);"
        "return [s.backgroundColor, s.color].map(c => c.match(/\\d+/g).map(Number))"
    )
    assert (sum(paper) > sum(ink)) == (scheme == "light")
    assert _contrast(paper, ink) >= 7
    for name in ("caption", "nav a", ".verdict strong"):
        colour = browser.execute_script(
            "return getComputedStyle(document.querySelector(arguments[0])).color"
            ".match(/\\d+/g).map(Number)",
            name,
        )
        assert _contrast(paper, colour) >= 4.5, name
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(str(SCREENSHOTS / f"report-{width}-{scheme}.png"))


def _contrast(one: list[int], other: list[int]) -> float:
    """Contrast ratio of two colours (WCAG 2)."""

    def light(colour: list[int]) -> float:
        parts = [c / 255 for c in colour[:3]]
        linear = [
            p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_keyboard_reaches_the_content_first(
    browser: webdriver.Chrome, tiny: str
) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get(tiny)
    body = browser.find_element("tag name", "body")
    body.send_keys(Keys.TAB)
    focused = browser.switch_to.active_element
    assert focused.get_attribute("class") == "skip"
    focused.send_keys(Keys.ENTER)
    assert browser.current_url.endswith("#main")


def test_works_without_scripts(tmp_path: Path, tiny: str) -> None:
    driver = _browser(tmp_path / "plain", scripts=False)
    try:
        driver.get(tiny)
        assert "FEASIBLE" in driver.find_element("tag name", "header").text
        assert driver.find_element("id", "timeline").is_displayed()
    finally:
        driver.quit()


@pytest.mark.slow
def test_a_large_report_opens_in_two_seconds(
    browser: webdriver.Chrome, site: tuple[Path, str]
) -> None:
    folder, address = site
    scenario = ROOT / "scenarios" / "resnet50-arch-a.yaml"
    rc.schedule(scenario, out=folder / "large", program=False)
    browser.get("about:blank")
    started = time.perf_counter()
    browser.get(f"{address}/large/report.html")
    assert time.perf_counter() - started <= 2
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
