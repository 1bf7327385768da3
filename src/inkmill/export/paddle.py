"""The Paddle-compatible profile: pictures as PaddleOCR and RapidOCR prepare them, turned into our own inside the graph.

They give BGR in [-1, 1], (B, 3, H, W), and pad to the right with 0, a gray that our readers never saw: training repeats
the last column. No pixel of 8 bits becomes 0 (that would be 127.5), so columns of nothing but 0 are padding, and are
replaced by the last column of the picture.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.data.fit import BUCKET_STEP
from inkmill.errors import ConfigError
from inkmill.runtime.card import ReaderCard

MAX_WIDTH = 8192
"""RapidOCR does not squeeze long lines; this is the widest input that a spec may ask for."""

_BGR_TO_GRAY = (0.114, 0.587, 0.299)
"""ITU-R BT.601, as when training's files were decoded."""


class PaddleInput(nn.Module):
    """(B, 3, H, W) BGR in [-1, 1], padded with 0, to our (B, C, H, W') of a width in steps of 32."""

    weights: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gray = spec.input_channel == 1
        self.register_buffer("weights", torch.tensor(_BGR_TO_GRAY).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return what the recogniser takes."""
        width = images.shape[3]
        inked = images.abs().amax(dim=(1, 2)) > 0  # B W
        places = torch.arange(width, device=images.device)
        last = torch.where(inked, places, 0).amax(dim=1)
        wide = (width + BUCKET_STEP - 1) // BUCKET_STEP * BUCKET_STEP
        column = torch.minimum(torch.arange(wide, device=images.device), last[:, None])
        plain = (images * self.weights).sum(dim=1, keepdim=True) if self.gray else images.flip(1)
        index = column[:, None, None].expand(-1, plain.shape[1], plain.shape[2], -1)
        return plain.gather(3, index)


def refuse_unfit(card: ReaderCard, where: str) -> None:
    """Raise ConfigError where PaddleOCR's way of reading could not use this reader."""
    model = card.model
    if model.prediction != "CTC" or model.input_fit != "height":
        raise ConfigError(
            f"{where}: export.profile=paddle is for readers with prediction=CTC and input_fit=height (the width that "
            f"RapidOCR chooses is free), not prediction={model.prediction} and input_fit={model.input_fit}"
        )
    if "\n".join(card.charset).splitlines() != card.charset:
        raise ConfigError(
            f"{where}: its characters hold a line separator, which PaddleOCR's list of one character a line cannot hold"
        )
