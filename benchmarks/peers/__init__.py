"""What a user would otherwise write, one file a library, each in its own project's documented way.

All do the same work: decode, resize to the input, the strong augmentation in the library's own operators with the
ranges of `strong_ranges`, and a uint8 batch on the device. Each case's note says what its operators do differently.
FFCV is missing: it ships no wheels, and its source did not build on the machines this was written on.
"""

from __future__ import annotations

from inkmill.bench.cases import Augment, BenchmarkCase
from peers import dali_docs, litdata, spdl, torch_albumentations, webdataset

_PEERS = (torch_albumentations, webdataset, dali_docs, litdata, spdl)


def peer_cases(augment: Augment) -> list[BenchmarkCase]:
    """Return the case of every library; one that is not installed says so when it is measured."""
    return [peer.case(augment) for peer in _PEERS]
