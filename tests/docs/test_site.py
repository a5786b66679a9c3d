"""The built site, and the page of ``klover fit``: what they load, where they lead, how a browser shows them."""

import functools
import html.parser
import itertools
import os
import shutil
import urllib.parse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.results.report import write_report

pytestmark = pytest.mark.slow

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
NAMES = [path.relative_to(SITE).as_posix() for path in sorted(SITE.rglob("*.html"))]
EACH_PAGE = pytest.mark.parametrize(
    "name", NAMES or [pytest.param("", marks=pytest.mark.skip(reason="there is no site: make docs builds it"))]
)
GENERATED = {"genindex.html", "py-modindex.html", "search.html"}
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
NARROW = 390
"""Pixels of a telephone, whose pages must not scroll sideways."""
SCREENS = list(itertools.product((NARROW, 1200), ("light", "dark")))
WITHOUT_SIZE = """
const isBroken = (element) => element.tagName == "IMG" && element.complete && !element.naturalWidth;
return [...document.querySelectorAll("table, img, math")]
  .filter((element) => element.getClientRects().length && !element.closest("details:not([open])"))
  .filter((element) => isBroken(element) || element.getBoundingClientRect().width < 2)
  .map((element) => element.outerHTML.slice(0, 120));
"""
FROM_ELSEWHERE = """
const addresses = performance.getEntriesByType("resource").map((entry) => entry.name);
return addresses.filter((address) => !/^(file|data|blob):/.test(address));
"""


class Page(html.parser.HTMLParser):
    """What a page loads, where its links lead, and which places it has."""

    def __init__(self, path: Path):
        super().__init__()
        self.loaded, self.links, self.places = [], [], set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.places |= {values.get("id"), values.get("name")}
        if tag == "a":
            self.links.append(values.get("href", ""))
        if tag in LOADED and values.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(values.get(LOADED[tag]) or "")


parsed = functools.cache(Page)


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window; a test that needs one is skipped where there is none."""
    try:
        from selenium import webdriver
    except ImportError:
        pytest.skip("selenium is not installed (extra docs)")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (program and driver):
        pytest.skip("there is no chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page that ``klover fit`` writes."""
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(3))
    fit = klover.refine(0, target)
    return write_report(tmp_path_factory.mktemp("fit") / "report.html", fit, "Three Normals", "klover fit")


def show(browser, path, width, scheme):
    """Open a page as a person would, and return what is wrong with it."""
    browser.get_log("browser")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == NARROW}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    preference = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", preference)
    browser.get(path.as_uri())
    sideways = browser.execute_script("return document.documentElement.scrollWidth") - width
    return {
        "console": [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"],
        "elsewhere": browser.execute_script(FROM_ELSEWHERE),
        "without size": browser.execute_script(WITHOUT_SIZE),
        "sideways": [sideways] if sideways > 0 else [],
    }


@EACH_PAGE
def test_a_page_shows_no_warnings_and_no_path_of_who_built_it(name):
    text = (SITE / name).read_text("utf-8")
    assert "output stderr" not in text
    assert str(SITE.parents[2]) not in text


@EACH_PAGE
def test_a_page_loads_nothing_from_elsewhere_and_its_links_lead_somewhere(name):
    path = SITE / name
    page = parsed(path)
    assert [address for address in page.loaded if "//" in address] == []
    for address in page.links + page.loaded:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme or parts.netloc or name in GENERATED:
            continue
        place = Path(os.path.normpath(path.parent / urllib.parse.unquote(parts.path))) if parts.path else path
        assert place.exists(), address
        if parts.fragment and place.suffix == ".html":
            assert urllib.parse.unquote(parts.fragment) in parsed(place).places, address


@EACH_PAGE
def test_a_browser_shows_each_page(name, browser):
    for width, scheme in SCREENS:
        found = show(browser, SITE / name, width, scheme)
        assert not any(found.values()), (width, scheme, found)


def test_a_browser_shows_the_page_of_a_fit(browser, report):
    for width, scheme in SCREENS:
        found = show(browser, report, width, scheme)
        assert not any(found.values()), (width, scheme, found)
