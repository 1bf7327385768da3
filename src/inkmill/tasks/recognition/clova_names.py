"""The names of CLOVA's deep-text-recognition-benchmark and of TAO OCRNet for the layers that inkmill has too.

Both build the four stages of Baek et al. 2019 from the same layers under the same names, and so does inkmill, under its
own. The table below is made from the structure of the stages; it says nothing of weights, of which none is changed.

    Transformation       TPS             -> rectifier
    FeatureExtraction    ResNet or VGG   -> backbone
    SequenceModeling     BiLSTMs         -> neck
    Prediction           CTC or Attn     -> head

Not in it: RCNN and FAN_tiny_2X, which have no counterpart with the same layers here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from torch import Tensor

FOLLOWS_FROM_SIZES = "Transformation.GridGenerator."
"""The spline's constants, which CLOVA saves and inkmill computes from the sizes of the input."""

_RESNET_BLOCKS = (1, 2, 5, 3)


def in_our_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under inkmill's names; what is not CLOVA's keeps its name, the spline's constants go."""
    table = _table()
    renamed = {}
    for name, tensor in weights.items():
        if not name.startswith(FOLLOWS_FROM_SIZES):
            module, _, parameter = name.rpartition(".")
            renamed[f"{table.get(module, module)}.{parameter}" if module else name] = tensor
    return renamed


@cache
def _table() -> dict[str, str]:
    """Return the modules that own tensors: their name there -> here."""
    return dict([*_rectifier(), *_resnet(), *_vgg(), *_neck(), *_heads()])


def _rectifier() -> Iterator[tuple[str, str]]:
    theirs = "Transformation.LocalizationNetwork"
    for unit in range(4):  # convolution, norm, ReLU, pooling: four entries in one list there, two of a unit each here
        yield f"{theirs}.conv.{4 * unit}", f"rectifier.localisation.{2 * unit}.0"
        yield f"{theirs}.conv.{4 * unit + 1}", f"rectifier.localisation.{2 * unit}.1"
    yield f"{theirs}.localization_fc1.0", "rectifier.hidden.0"
    yield f"{theirs}.localization_fc2", "rectifier.points"


def _resnet() -> Iterator[tuple[str, str]]:
    theirs = "FeatureExtraction.ConvNet"
    units = {"0_1": "stem.0", "0_2": "stem.1", "4_1": "collapse.0", "4_2": "collapse.1"}
    for stage, blocks in enumerate(_RESNET_BLOCKS, 1):
        for block in range(blocks):
            there, here = f"{theirs}.layer{stage}.{block}", f"backbone.stage{stage}.{block}"
            yield from ((f"{there}.{part}", f"{here}.{part}") for part in ("conv1", "bn1", "conv2", "bn2"))
            yield from ((f"{there}.downsample.{part}", f"{here}.shortcut.{part}") for part in (0, 1))
        if stage < 4:
            units[str(stage)] = f"stage{stage}.{blocks}"  # the convolution that closes the stage
    for number, unit in units.items():
        yield f"{theirs}.conv{number}", f"backbone.{unit}.0"
        yield f"{theirs}.bn{number}", f"backbone.{unit}.1"


def _vgg() -> Iterator[tuple[str, str]]:
    plain = {0: 0, 3: 2, 6: 4, 8: 5}  # position of a convolution there, of the unit that holds it here
    with_norm = {11: 7, 14: 8}
    for there, here in (plain | with_norm).items():
        yield f"FeatureExtraction.ConvNet.{there}", f"backbone.layers.{here}.0"
    for there, here in with_norm.items():
        yield f"FeatureExtraction.ConvNet.{there + 1}", f"backbone.layers.{here}.1"
    yield "FeatureExtraction.ConvNet.18", "backbone.layers.10"


def _neck() -> Iterator[tuple[str, str]]:
    for layer in range(2):
        for part in ("rnn", "linear"):
            yield f"SequenceModeling.{layer}.{part}", f"neck.{layer}.{part}"


def _heads() -> Iterator[tuple[str, str]]:
    yield "Prediction", "head.classes"  # CTC: the linear layer itself
    yield "Prediction.generator", "head.classes"  # Attn
    for theirs, ours in (("i2h", "key"), ("h2h", "query"), ("score", "score"), ("rnn", "cell")):
        yield f"Prediction.attention_cell.{theirs}", f"head.{ours}"
