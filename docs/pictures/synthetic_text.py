"""Draws synthetic_text.png: synthetic words as a model with inputs by aspect ratio meets them, from what is carried."""

from __future__ import annotations

from pathlib import Path

import cv2

from inkmill.config.spec import Spec
from inkmill.synth.characters import CHARACTERS
from inkmill.synth.engine import Settings, SynthEngine
from inkmill.synth.sheet import draw_samples, sheet
from inkmill.tasks.base import input_resize

HERE = Path(__file__).parent
COUNT, SEED = 80, 23


def main() -> None:
    """Write the picture beside this file."""
    spec = Spec.model_validate({"model": {"input_resize": "aspect", "input_height": 32, "input_width": 256}})
    synthetic = spec.dataset.synthetic.model_copy(update={"lines": 0.0})
    engine = SynthEngine(Settings(synthetic, CHARACTERS, 16))
    images, _, aspects = draw_samples(engine, input_resize(spec.model), SEED, COUNT)
    picture = sheet(images, aspects)
    picture = picture & 0xF8 | picture >> 5  # 32 shades a channel: half of the file
    cv2.imwrite(str(HERE / "synthetic_text.png"), picture[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 9])


if __name__ == "__main__":
    main()
