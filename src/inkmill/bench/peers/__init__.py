"""What a user would otherwise write, one file a peer, each in its own project's documented way.

All do the same work: decode, resize to the input, the strong augmentation in the peer's own operators with the ranges
of `strength`, and a uint8 batch on the device. Each row's note says what its operators do differently.
"""

from __future__ import annotations

from inkmill.bench.contest import Augment, Contestant
from inkmill.bench.peers import (
    dali_docs,
    ffcv,
    litdata,
    spdl,
    torch_albumentations,
    torch_pil,
    webdataset,
)

_PEERS = (torch_pil, torch_albumentations, webdataset, dali_docs, ffcv, litdata, spdl)


def peers(augment: Augment) -> list[Contestant]:
    """Return all peers, each ready to run or with the reason why it cannot."""
    return [peer.contestant(augment) for peer in _PEERS]
