"""The page of the server in a real browser: Debian's Chromium, without a screen."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import cv2
import httpx2
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("selenium", reason="the tests of the page need selenium: pip install 'inkmill[browser-test]'")

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from tests.serve.conftest import page_of, png

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no chromium and chromedriver on this machine"),
]
HOSTILE = "<img src=x onerror=alert(1)>"

GIVE = """
const [kind, name, type, content] = arguments;
const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([bytes], name, { type }));
const event = kind === "drop"
  ? new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true })
  : new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true });
document.getElementById("drop").dispatchEvent(event);
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = Options()
    options.binary_location = CHROMIUM or ""
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking", "no-first-run"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser: webdriver.Chrome, server: tuple[subprocess.Popen[str], str]) -> tuple[webdriver.Chrome, str]:
    browser.set_window_size(1200, 900)
    browser.get(server[1])
    return browser, server[1]


def give(
    browser: webdriver.Chrome, content: bytes, how: str = "drop", name: str = "a.png", kind: str = "image/png"
) -> None:
    browser.execute_script(GIVE, how, name, kind, base64.b64encode(content).decode())


def status(browser: webdriver.Chrome, part: str) -> str:
    """Wait until the page says something; return all of what it says."""
    wait = WebDriverWait(browser, 20)
    wait.until(lambda driver: part in driver.find_element(By.ID, "status").text)
    return browser.find_element(By.ID, "status").text


def lines(browser: webdriver.Chrome) -> list[str]:
    return [one.text for one in browser.find_elements(By.CSS_SELECTOR, "#text li span")]


def boxes(browser: webdriver.Chrome) -> list[list[list[float]]]:
    polygons = browser.find_elements(By.CSS_SELECTOR, "#boxes polygon")
    points = [polygon.get_attribute("points").split() for polygon in polygons]
    return [[[float(number) for number in point.split(",")] for point in polygon] for polygon in points]


def ink(browser: webdriver.Chrome) -> float:
    """Wait until the page's picture is drawn; return how much of it is black."""
    canvas = browser.find_element(By.ID, "canvas")
    WebDriverWait(browser, 20).until(lambda _: canvas.get_attribute("data-drawn"))
    script = """const c = document.getElementById("canvas");
    const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
    let dark = 0; for (let i = 0; i < d.length; i += 4) dark += d[i] < 128; return 4 * dark / d.length;"""
    return float(browser.execute_script(script))


def test_a_dropped_picture_shows_its_lines_in_their_places(page: tuple[webdriver.Chrome, str]) -> None:
    browser, address = page
    content = png("HELLO", HOSTILE)
    give(browser, content)
    status(browser, "2 lines on 1 page,")
    answer = httpx2.post(f"{address}/v1/read", content=content).json()["pages"][0]
    assert boxes(browser) == [line["polygon"] for line in answer["lines"]]
    svg = browser.find_element(By.ID, "boxes").rect
    canvas = browser.find_element(By.ID, "canvas").rect
    assert [svg[side] for side in ("x", "y", "width", "height")] == pytest.approx(
        [canvas[side] for side in ("x", "y", "width", "height")], abs=1
    )
    assert (
        browser.find_element(By.ID, "boxes").get_dom_attribute("viewBox") == f"0 0 {answer['width']} {answer['height']}"
    )
    # What was read is text, whatever it looks like.
    assert lines(browser) == ["HELLO", HOSTILE]
    assert not browser.find_elements(By.CSS_SELECTOR, "#result img")
    assert ink(browser) > 0.01
    # A line and its box mark each other.
    browser.execute_script("document.querySelectorAll('#text li')[1].focus()")
    classes = [one.get_dom_attribute("class") for one in browser.find_elements(By.CSS_SELECTOR, "#boxes polygon")]
    assert ["marked" in (names or "") for names in classes] == [False, True]


def test_a_pasted_picture_is_read(page: tuple[webdriver.Chrome, str]) -> None:
    give(page[0], png("PASTED"), "paste")
    status(page[0], "1 line on 1 page,")
    assert lines(page[0]) == ["PASTED"]


def test_each_page_of_a_document_is_seen_behind_its_boxes(page: tuple[webdriver.Chrome, str]) -> None:
    browser, _ = page
    tiff = cv2.imencodemulti(".tif", [page_of("ONE"), page_of("TWO", "MORE")])[1].tobytes()
    give(browser, tiff, name="two.tif", kind="image/tiff")
    status(browser, "3 lines on 2 pages,")
    assert lines(browser) == ["ONE"]
    assert ink(browser) > 0.01
    # By keyboard alone.
    browser.find_element(By.ID, "after").send_keys(Keys.ENTER)
    assert lines(browser) == ["TWO", "MORE"]
    assert ink(browser) > 0.01
    assert not browser.find_element(By.ID, "after").is_enabled()


def test_errors_are_words_and_the_page_goes_on(page: tuple[webdriver.Chrome, str]) -> None:
    browser, _ = page
    give(browser, b"no picture at all, but some bytes")
    assert "not an image in a known format" in status(browser, "known format")
    assert "error" in browser.find_element(By.ID, "status").get_attribute("class")
    give(browser, bytes(21 << 20))
    status(browser, "has 21.0 MiB; this server takes at most 20.0 MiB")
    give(browser, png("AGAIN"))
    status(browser, "1 line on 1 page,")
    assert lines(browser) == ["AGAIN"]


def test_nothing_is_asked_of_another_origin(page: tuple[webdriver.Chrome, str]) -> None:
    browser, address = page
    give(browser, png("HERE"))
    status(browser, "1 line")
    asked = [
        message["params"]["request"]["url"]
        for entry in browser.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"] == "Network.requestWillBeSent"
    ]
    allowed = ("http://127.0.0.1:", "blob:http://127.0.0.1:", "data:")
    assert f"{address}/v1/read?format=json" in asked
    assert [url for url in asked if not url.startswith(allowed)] == []


def test_a_narrow_screen_needs_no_sideways_scrolling(page: tuple[webdriver.Chrome, str]) -> None:
    browser, _ = page
    size: dict[str, Any] = {"width": 320, "height": 640, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        give(browser, png("A LONG LINE OF TEXT " * 3, "SHORT"))
        status(browser, "2 lines")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 320
        picture, text = (browser.find_element(By.ID, name).rect for name in ("picture", "text"))
        assert text["y"] >= picture["y"] + picture["height"]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
