"""Draws the two pictures of the README: what a reader reads, and how fast it trains.

    make demo && python docs/pictures/readme.py            # reading.png, from the demo's held-out captchas
    python benchmarks/train_speed.py --json docs/pictures/train_speed.json && python docs/pictures/readme.py

Each picture is drawn if what it shows is there. The captchas are those of examples/captcha_digits4.tar (MIT).
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from inkmill.data.pipeline.decode import decode

HERE = Path(__file__).parent
DEMO = HERE.parent.parent / "results" / "demo"
ROWS, COLUMNS = 3, 6
BLUE, GRAY, RED = "#1f6f8b", "#b0b7bd", "#b5433a"
BARS = {
    "classic": "DataLoader + Pillow + torchvision, fp32",
    "streamed": "inkmill, streamed",
    "repeated": "the step alone",
}


def draw_reading() -> None:
    """Draw held-out captchas with the text that was read, its confidence, and the mistakes in red."""
    with (DEMO / "evaluate" / "predictions.csv").open(encoding="utf-8", newline="") as file:
        predictions = list(csv.DictReader(file))
    # Every mistake would crowd out the rest: one is shown, for there are some.
    wrong = [row for row in predictions if row["truth"] != row["text"]][:1]
    right = [row for row in predictions if row["truth"] == row["text"]]
    shown = right[:: max(1, len(right) // (ROWS * COLUMNS))][: ROWS * COLUMNS - len(wrong)] + wrong
    figure = Figure(figsize=(9, 3.1), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, row in zip(figure.subplots(ROWS, COLUMNS).ravel(), shown, strict=False):
        image = decode((DEMO / "data" / "captcha_digits4" / row["key"]).read_bytes(), 3)
        axes.imshow(cv2.copyMakeBorder(image, 2, 2, 2, 2, cv2.BORDER_CONSTANT, value=(200, 200, 200)))
        good = row["truth"] == row["text"]
        caption = f"{row['text']}   {float(row['confidence']):.2f}" if good else f"{row['text']} (is {row['truth']})"
        axes.set_title(caption, fontsize=9, color="black" if good else RED, family="monospace")
        axes.axis("off")
    save(figure, "reading.png")


def draw_training(rows: list[dict[str, Any]]) -> None:
    """Draw images a second of training: the classic recipe, inkmill, and the step on one repeated batch."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = Figure(figsize=(9, 0.6 + 1.1 * len(models)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, model in zip(figure.subplots(len(models), 1, squeeze=False)[:, 0], models, strict=True):
        speeds = {row["data"]: row["images_per_s"] for row in rows if row["model"] == model}
        values = [speeds[name] for name in BARS]
        bars = axes.barh(list(BARS.values()), values, color=[GRAY, BLUE, "#dfe3e6"], height=0.7)
        axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=4, fontsize=8)
        axes.set_title(f"{model}, training images per second, one H200", fontsize=9, loc="left")
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, "training.png")


def save(figure: Figure, name: str) -> None:
    """Write a picture of few colours, which takes a third of the bytes."""
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., 2::-1]  # type: ignore[attr-defined]
    cv2.imwrite(str(HERE / name), pixels & 0xF0 | pixels >> 4, [cv2.IMWRITE_PNG_COMPRESSION, 9])


def main() -> None:
    """Draw what can be drawn."""
    if (DEMO / "evaluate" / "predictions.csv").is_file():
        draw_reading()
    if (measured := HERE / "train_speed.json").is_file():
        draw_training(json.loads(measured.read_text(encoding="utf-8"))["rows"])


if __name__ == "__main__":
    main()
