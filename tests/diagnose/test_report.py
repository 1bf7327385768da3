from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rich.console import Console

from inkmill.diagnose.fixed_batch import FixedBatch
from inkmill.diagnose.probe import Reading
from inkmill.diagnose.report import bars_with_whiskers, show, write_page
from inkmill.diagnose.run import Diagnosis
from inkmill.diagnose.verdict import Verdict
from inkmill.perf.plan import make_plan
from inkmill.perf.predict import Facts, ImageCost, Settings, StepCost
from inkmill.perf.stats import Stall, interval

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def found() -> Diagnosis:
    import torch

    def ms(mean: float) -> object:
        return interval([mean * 0.95e-3, mean * 1e-3, mean * 1.05e-3])

    stalls = tuple(
        Stall(name, ms(mean), mean / 20, state)  # type: ignore[arg-type]
        for name, mean, state in (("launch", 0.1, "absent"), ("prepare", 9.9, "real"), ("fetch", 5.0, "unclear"))
    )
    test = FixedBatch(64, ms(10), ms(10.1), ms(20), ms(25), stalls)  # type: ignore[arg-type]
    facts = Facts(ImageCost(1e-5, 2e-4, 1e-5), (StepCost(64, "fp32", False, True, 1.6e-4, 1e-5),), True, 8, 1000)
    plan = make_plan(Settings(workers=1, batch_size=64), facts)
    times = {"read": interval([1e-5, 1.1e-5]), "decode": interval([2e-4, 2.1e-4])}
    reading = Reading(4000.0, 1e-5, 2e-4)
    machine = {"cpu": "a <cpu>", "cores": 8, "memory_gib": 16, "gpus": [], "load": 0.5, "date": "2026-11-20T00:00"}
    verdict = Verdict("prepare", "prepare: waits & waits; set dataset.workers=3", {"dataset.workers": 3})
    speeds = interval([4000.0, 4100.0])
    measured = (plan, plan, speeds, True, test.cold_throughput, 0.1)
    device = torch.device("cpu")
    return Diagnosis(verdict, test, times, reading, facts, *measured, device, machine, 9.0, ("<note>",))


class Words(HTMLParser):
    """Collects the text of a page and checks that tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data + "\n"


def test_the_page_says_what_the_screen_says_and_loads_nothing(found: Diagnosis, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", found)
    text = (tmp_path / "page.html").read_text("utf-8")
    page = Words()
    page.feed(text)
    assert page.open == []
    for words in (
        "waits & waits",
        "prepare",
        "cannot tell",
        "read, cold",
        "dataset.workers=",
        "as it is: 3,200 images/s, warm; 2,560 read from the disk",
        "measured 4,050",
        "<note>",
    ):
        assert words in page.words
    assert text.count("<svg") == 2
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_the_verdict_comes_first_on_the_screen(found: Diagnosis, capsys: pytest.CaptureFixture[str]) -> None:
    show(Console(width=160), found)
    said = capsys.readouterr().out
    assert said.splitlines()[0] == found.verdict.sentence
    assert len(said.splitlines()) < 50
    for words in ("prepare", "a stall", "decode", "predicted", "measured 4,050", "cold image", "<note>"):
        assert words in said


def test_bars_are_as_long_as_their_quantities_and_negative_ones_have_none() -> None:
    drawn = bars_with_whiskers(
        ["a", "<b>", "c"], [interval([2.0, 2.0]), interval([1.0, 1.0]), interval([-1.0, -1.0])], 1, "s"
    )
    assert 'width="480.0"' in drawn
    assert 'width="240.0"' in drawn
    assert 'width="0.0"' in drawn
    assert "&lt;b&gt;" in drawn


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed to open the page with")
def test_a_browser_shows_the_page(found: Diagnosis, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", found)
    program = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    shot = f"--screenshot={tmp_path}/page.png"
    url = (tmp_path / "page.html").as_uri()
    shown = subprocess.run(
        [*program, "--enable-logging=stderr", "--v=0", "--window-size=1000,1400", shot, url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if not (tmp_path / "page.png").exists():
        pytest.skip(f"chromium does not run here: {shown.stderr.strip().splitlines()[-1:]}")
    assert "CONSOLE" not in shown.stderr, shown.stderr  # a refused resource or a script's error is written there
    dumped = subprocess.run([*program, "--dump-dom", url], capture_output=True, text=True, timeout=60).stdout
    assert "waits &amp; waits" in dumped
    assert dumped.count("<rect") == 9
    import cv2

    image = cv2.imread(str(tmp_path / "page.png"))
    bars = (image.astype(int) - (0xD8, 0x7D, 0x3B)).__abs__().max(axis=2) < 8  # BGR of --bar
    assert bars.sum() > 5000
