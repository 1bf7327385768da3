"""Draws augmentation.png: every op by itself, then every preset, on captchas of examples/captcha_digits4.tar."""

from __future__ import annotations

import tarfile
from pathlib import Path

import cv2
import numpy as np

from inkmill.data.augment import Augmentation, apply_cv
from inkmill.data.augment.ops import OPS, load_preset, parse_ops, preset_names
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize

HERE = Path(__file__).parent
CAPTCHAS = HERE.parent.parent / "examples" / "captcha_digits4.tar"
COLUMNS = 4
HEIGHT, WIDTH, LABEL, GAP = 40, 120, 100, 3


def captchas(count: int) -> np.ndarray:
    """Return the first captchas that have some colour, resized."""
    with tarfile.open(CAPTCHAS) as tar:
        members = sorted((m for m in tar if m.name.endswith(".png")), key=lambda m: m.name)[: 40 * count : 40]
        files = [tar.extractfile(member) for member in members]
        resize = Resize(HEIGHT, WIDTH, 3)
        return np.stack([resize.apply(decode(file.read(), 3))[0] for file in files if file])


def row(label: str, images: np.ndarray) -> np.ndarray:
    """Return one line of the picture: what it is, and what it does to each captcha."""
    words = np.full((HEIGHT, LABEL, 3), 255, np.uint8)
    cv2.putText(words, label, (4, HEIGHT // 2 + 5), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (40, 40, 40), 1, cv2.LINE_AA)
    gap = np.full((HEIGHT, GAP, 3), 255, np.uint8)
    line = np.concatenate([words, *(part for image in images for part in (image, gap))], axis=1)
    return np.concatenate([line, np.full((GAP, line.shape[1], 3), 255, np.uint8)])


def main() -> None:
    """Write the picture beside this file."""
    images = captchas(COLUMNS)
    index = np.arange(COLUMNS)
    rows = [row("as it is", images)]
    for name in OPS.names():
        if name != "group":
            changes = parse_ops([{"op": name, "p": 1}])
            rows.append(row(name, apply_cv(images, Augmentation(changes).sample(5, 0, index, HEIGHT, WIDTH))))
    for name in preset_names():
        augmentation = Augmentation(load_preset(name))
        for epoch in (0, 1):
            changed = apply_cv(images, augmentation.sample(5, epoch, index, HEIGHT, WIDTH))
            rows.append(row("" if epoch else f"[{name}]", changed))
    half = (len(rows) + 1) // 2
    rows += [np.full_like(rows[0], 255)] * (2 * half - len(rows))
    picture = np.concatenate([np.concatenate(rows[:half]), np.concatenate(rows[half:])], axis=1)
    picture = picture & 0xF0 | picture >> 4  # 16 shades a channel: a third of the file
    cv2.imwrite(str(HERE / "augmentation.png"), picture[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 9])


if __name__ == "__main__":
    main()
