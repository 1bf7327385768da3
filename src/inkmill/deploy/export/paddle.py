"""The Paddle-compatible profile: pictures as PaddleOCR and RapidOCR prepare them, resized as our own inside the graph.

They give BGR in [-1, 1], (B, 3, H, W), of height 48 whatever the reader's, as wide as the widest of a batch and at
least 320, and fill what is left with 0. A reader must not see that: one whose columns know their place (positions,
attention, an LSTM) reads another picture. No pixel of 8 bits becomes 0 (that would be 127.5), so the columns after the
last one that is not all 0 are padding. They are cut off, and the rest is resized to
what `Resize` would give.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.data.pipeline.resize import BUCKET_STEP
from inkmill.errors import ConfigError
from inkmill.modelfile.header import ModelHeader

THEIR_HEIGHT, THEIR_WIDTH = 48, 320
"""Of a picture that RapidOCR gives, where nothing else is set; the width is the least."""
MAX_SIDE = 8192
"""RapidOCR does not squeeze long lines; this is the widest (and highest) input that the graph takes."""

_BGR_TO_GRAY = (0.114, 0.587, 0.299)
"""ITU-R BT.601, as when training's files were decoded."""


class PaddleInput(nn.Module):
    """Their pictures to ours.

    Args:
        spec: of the reader: size, channels and fit of its input.
    """

    weights: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.height, self.width = spec.input_height, spec.input_width
        self.gray, self.resize = spec.input_channel == 1, spec.input_resize
        self.register_buffer("weights", torch.tensor(_BGR_TO_GRAY).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return pictures as wide as the widest input, and the width of the input that each would be given.

        Args:
            images: float32 (B, 3, H, W), BGR in [-1, 1], 0 to the right of a picture.

        Returns:
            float32 (B, C, height, width), the last column of a picture repeated to its right, and int64 (B,), in
            pixels: with the fit "height" in steps of 32.
        """
        plain = (images * self.weights).sum(dim=1, keepdim=True) if self.gray else images.flip(1)
        rows, columns = images.shape[2], torch.arange(images.shape[3], device=images.device)
        inked = images.abs().amax(dim=(1, 2)) > 0  # B W
        filled = torch.where(inked, columns, 0).amax(dim=1) + 1
        wanted = given = torch.full_like(filled, self.width)
        if self.resize != "stretch":
            middle = 2 * filled - 1  # twice the width before it was rounded up, on average
            wanted = torch.minimum((self.height * middle + 2 * rows - 1) // (2 * rows), wanted)
        one = torch.ones_like(filled)
        downwards = _weights(one * rows, one * self.height, rows, self.height)
        along = _weights(filled, wanted, images.shape[3], self.width)
        pictures = downwards[:, None] @ plain @ along[:, None].transpose(2, 3)
        if self.resize == "height":
            given = torch.clamp((wanted + BUCKET_STEP - 1) // BUCKET_STEP * BUCKET_STEP, max=self.width)
        return pictures, given


def _weights(have: Tensor, want: Tensor, old: int, new: int) -> Tensor:
    """Return (B, new, old), what every old column (or row) gives to a new one; what is beyond the wanted is the last.

    As in data.pipeline.resize: linear interpolation, pixel centres at half-integers, borders repeated, and where a side
    shrinks to less than its half, a triangle wide enough to look at every pixel.
    """
    place = torch.minimum(torch.arange(new, device=have.device), (want - 1)[:, None])
    step = (have.float() / want)[:, None]
    middle = ((place + 0.5) * step - 0.5)[:, :, None]
    sources = torch.arange(old, device=have.device)
    near = (1 - (sources - middle).abs() / (step / 2).clamp(min=1)[:, :, None]).clamp(min=0)
    near = torch.where(sources < have[:, None, None], near, 0)
    return near / near.sum(dim=2, keepdim=True)


def resized_twice(height: int) -> str:
    """Return the warning for a reader of another height than theirs."""
    return (
        f"RapidOCR gives pictures of {THEIR_HEIGHT} rows, which this reader resizes to {height}: what it is unsure of "
        f"it may read otherwise there; with model.input_height={THEIR_HEIGHT} they are resized once, as in training"
    )


def refuse_unfit(card: ModelHeader, where: str) -> None:
    """Raise ConfigError where PaddleOCR's way of reading could not use this reader."""
    if card.model.prediction != "CTC":
        raise ConfigError(
            f"{where}: export.profile=paddle is for readers with prediction=CTC, which is what RapidOCR decodes, not "
            f"prediction={card.model.prediction}"
        )
    if "\n".join(card.charset).splitlines() != card.charset:
        raise ConfigError(
            f"{where}: its characters hold a line separator, which PaddleOCR's list of one character a line cannot hold"
        )
