"""Draws the picture of docs/read.md: python docs/pictures/read.py [DETECTOR.onnx READER.onnx]"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from inkmill.files import atomic_path
from inkmill.pages import PageReader
from inkmill.pages.documents import Document
from inkmill.pages.outputs import FORMATS

ROWS = [
    ("Corner Café", "No. 0042"),
    ("12 Mill Lane, Inkford", ""),
    ("", ""),
    ("2 x Flat white", "7.20"),
    ("1 x Toast with jam", "4.50"),
    ("1 x Apple juice", "3.10"),
    ("", ""),
    ("Total", "14.80"),
    ("Cash", "20.00"),
    ("Change", "5.20"),
    ("", ""),
    ("Thank you! Come again.", ""),
]


def receipt() -> Image.Image:
    """Return a drawn receipt that lies a little askew."""
    image = Image.new("RGB", (420, 430), "#f4f1ea")
    pen = ImageDraw.Draw(image)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    plain, bold = (ImageFont.truetype(str(folder / f"DejaVuSans{kind}.ttf"), 19) for kind in ("", "-Bold"))
    for row, (left, right) in enumerate(ROWS):
        font = bold if left in ("Corner Café", "Total") else plain
        pen.text((36, 34 + 30 * row), left, font=font, fill="#222222")
        pen.text((384 - pen.textlength(right, font=font), 34 + 30 * row), right, font=font, fill="#222222")
    return image.rotate(-2.5, resample=Image.Resampling.BICUBIC, fillcolor="#f4f1ea")


def main() -> None:
    """Read it and write the picture."""
    reader = PageReader(*(sys.argv[1:3] or (None, None)))
    with Document(np.asarray(receipt()), "receipt.png") as document:
        page = reader.read_page(document.page(1))
        with atomic_path(Path(__file__).with_suffix(".svg")) as temporary:
            temporary.write_bytes(FORMATS["picture"].write([page], document))


if __name__ == "__main__":
    main()
