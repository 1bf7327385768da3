"""inkmill as OCRmyPDF's engine: a scan of several pages gets its text, in its place."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
from PIL import Image, ImageDraw, ImageFont

pytest.importorskip("ocrmypdf", reason="the plugin is tested where OCRmyPDF is: pip install 'inkmill[ocrmypdf]'")
pypdfium2 = pytest.importorskip("pypdfium2")

FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
WORDS = ["Harbour", "lantern", "seventy", "garden", "window", "Monday", "bridge", "orange", "quarter", "village"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gs") is None, reason="OCRmyPDF needs ghostscript, which is not on this machine")
def test_a_scan_of_several_pages_gets_its_text_in_its_place(tmp_path: Path) -> None:
    pages = []
    for number in range(6):
        image = Image.new("L", (600, 300), 255)
        pen = ImageDraw.Draw(image)
        text = f"{WORDS[number]} {WORDS[-number]}"
        pen.text((80, 100), text, font=ImageFont.truetype(str(FONT), 40), fill=0)
        pages.append(image)
    scan, done = tmp_path / "scan.pdf", tmp_path / "done.pdf"
    pages[0].save(scan, save_all=True, append_images=pages[1:], resolution=150)
    command = [sys.executable, "-m", "ocrmypdf", "--plugin", "inkmill.ocrmypdf", "--ocr-engine", "inkmill"]
    options = ["--output-type", "pdf", "--optimize", "0", "--jobs", "1"]
    result = subprocess.run([*command, *options, str(scan), str(done)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    with pypdfium2.PdfDocument(done) as document:
        assert len(document) == 6
        for number, page in enumerate(document):
            text = page.get_textpage()
            found = " ".join(text.get_text_range().split())
            assert found == f"{WORDS[number]} {WORDS[-number]}"
            # In points, 72 an inch, from the bottom; the scan has 150 pixels an inch.
            left, bottom, _, top = (value * 150 / 72 for value in text.get_charbox(0))
            assert left == pytest.approx(80, abs=12)
            assert 95 < 300 - top < 130  # ink from 107 to 138, without descenders
            assert 125 < 300 - bottom < 155
