"""The recogniser: images to class scores, [rectifier] -> backbone -> mean over height -> [sequence stage] -> head.

After Baek et al. 2019 ("What is wrong with scene text recognition model comparisons?"), whose four stages are TAO
OCRNet's too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.config.spec import Spec
from inkmill.errors import CharsetError, ConfigError
from inkmill.nn.backbones import build_backbone
from inkmill.nn.necks.bilstm import bilstm_stack
from inkmill.nn.rectifiers.tps import TPS
from inkmill.nn.simulate import simulate_int8
from inkmill.tasks.model import Adopted, TaskModel, Tensors
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.clova_names import in_our_names
from inkmill.tasks.recognition.decoder import ALL, BEST
from inkmill.tasks.recognition.heads import HEADS, AttentionGuide, Head, HeadSpec
from inkmill.tasks.recognition.task import Recognition

_TELLING = {"head.cell.weight_ih": "Attn", "head.queries": "Slots"}
"""Tensors that tell the head of another program's file."""


class Recognizer(TaskModel):
    """A text recogniser, built by `build_recognizer`.

    Attributes:
        spec: what it was built from.
        num_classes: classes K of the codec, its special ones included.
        max_label_length: longest text, in characters, of the heads that fix one.
    """

    head: Head
    float_parts: tuple[str, ...] = ()

    def __init__(self, spec: ModelSpec, num_classes: int, max_label_length: int) -> None:
        super().__init__()
        self.spec, self.num_classes, self.max_label_length = spec, num_classes, max_label_length
        self.backbone = build_backbone(spec)
        channels = self.backbone.out_channels
        self.rectifier: nn.Module = nn.Identity()
        if spec.TPS:
            self.rectifier = TPS(spec.num_fiducial, spec.input_height, spec.input_width, spec.input_channel)
        self.neck: nn.Module = nn.Identity()
        if spec.sequence == "BiLSTM":
            self.neck = bilstm_stack(channels, spec.hidden_size, spec.sequence_layers)
            channels = spec.hidden_size
        self.head = HEADS.get(spec.prediction)(HeadSpec(channels, num_classes, max_label_length, spec.hidden_size))
        self.guide = AttentionGuide(channels, num_classes, max_label_length) if spec.guide else None
        if self.guide is not None:
            self.training_parts = self.float_parts = ("guide",)
        self._known_steps: dict[tuple[int, int], int] = {}

    def features(self, images: Tensor) -> Tensor:
        """Return what the head reads: (B, C, H, W) images to (B, T, channels)."""
        feature_map: Tensor = self.backbone(self.rectifier(images))
        features: Tensor = self.neck(feature_map.mean(dim=2).transpose(1, 2))
        return features

    def forward(self, images: Tensor, *taught: Tensor) -> Any:
        """Return the (B, S, K) scores of `images`, float (B, C, H, W) in [-1, 1].

        `taught`, if anything, are the class ids, int64 (B, L); the attention head is taught with them, and so is the
        guide, whose scores (B, L + 1, K) follow in a tuple. The other heads do not look at them.
        """
        return self._scores(self.features(images), *taught)

    def _scores(self, features: Tensor, *taught: Tensor) -> Any:
        logits: Tensor = self.head(features, *taught)
        return (logits, self.guide(features, *taught)) if taught and self.guide is not None else logits

    def taught(self, targets: Tensors) -> Tensors:
        """Return the class ids."""
        return targets[:1]

    def loss(self, outputs: Any, targets: Tensors) -> Tensor:
        """Return the batch's mean loss of what `forward` gave; targets are ids (B, L) and lengths (B,), int64."""
        if isinstance(outputs, Tensor):
            return self.head.loss(outputs, *targets)
        assert self.guide is not None
        scores, guided = outputs
        return self.head.loss(scores, *targets) + self.spec.guide * self.guide.loss(guided, targets[0])

    def outputs(self, images: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """See TaskModel.outputs."""
        return self._named(self(images), names)

    def outputs_and_loss(
        self, images: Tensor, targets: Tensors, names: tuple[str, ...]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """See TaskModel; the loss is that of a head which is told the true characters, the texts are read without."""
        features = self.features(images)
        taught = self._scores(features, *self.taught(targets))
        own = taught if isinstance(taught, Tensor) else taught[0]
        free = self.head(features) if self.head.taught_by_targets else own
        return self._named(free, names), self.loss(taught, targets)

    def _named(self, scores: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        found = {}
        if any(name in names for name in BEST):
            ids, probabilities = self.head.read(scores)
            found = dict(zip(BEST, (ids, probabilities.float()), strict=True))
        if ALL in names:
            found[ALL] = scores.float().softmax(dim=2)
        return found

    def class_axes(self) -> dict[str, tuple[int, int]]:
        """See TaskModel.class_axes."""
        axes = {f"head.{name}": axis for name, axis in self.head.class_axes().items()}
        if self.guide is not None:
            axes |= {f"guide.{name}": (0, 0) for name in ("embedding.weight", "classes.weight", "classes.bias")}
        return axes

    def described(self) -> str:
        """Return rectifier, backbone, sequence stage and head."""
        spec = self.spec
        return f"{'TPS + ' if spec.TPS else ''}{spec.backbone} + {spec.sequence} + {spec.prediction}"

    def adopt(self, weights: dict[str, Tensor], spec: Spec, where: str) -> Adopted:
        """See TaskModel: the names of CLOVA's deep-text-recognition-benchmark and TAO OCRNet are understood.

        Raises:
            CharsetError: train.pretrained_character_list has another number of characters than the file.
        """
        ours = in_our_names(weights)
        head = next((head for name, head in _TELLING.items() if name in ours), "CTC")
        if head != self.spec.prediction:
            return Adopted(ours, None, f"the head of the file is {head}, here it is {self.spec.prediction}")
        listed = spec.train.pretrained_character_list
        if listed is None:
            reason = "the file does not say which characters its rows are: give train.pretrained_character_list"
            return Adopted(ours, None, reason)
        charset = Charset.from_file(listed)
        bias = ours.get("head.classes.bias")
        if bias is not None and bias.numel() - self.head.specials != len(charset):
            raise CharsetError(
                f"train.pretrained_character_list lists {len(charset)} characters, but the head of {where} has "
                f"{bias.numel() - self.head.specials}: give the list that it was trained with"
            )
        return Adopted(ours, Recognition(self.spec, charset, self.max_label_length), notes=charset.notes)

    def infeasible(self, steps: int, targets: Tensor, lengths: Tensor) -> Tensor:
        """Return bool (B,): targets that `steps` output steps cannot hold; with CTC they would teach nothing."""
        return self.head.infeasible(steps, targets, lengths)

    @torch.no_grad()
    def read(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class of each output step and its probability: int32 (B, S), float32 (B, S).

        In evaluation mode a batch reads as its images one by one.
        """
        return self.head.read(self(images))

    def feature_axes(self) -> dict[str, int]:
        """See `Network`: the tensors of the first LSTM, or of the head where there is none."""
        if isinstance(self.neck, nn.Sequential):
            return dict.fromkeys(("neck.0.rnn.weight_ih_l0", "neck.0.rnn.weight_ih_l0_reverse"), 1)
        axes = {f"head.{name}": axis for name, axis in self.head.feature_axes().items()}
        return axes | {"guide.seen.weight": 1} if self.guide is not None else axes

    def probe(self, images: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """See `Network`: the attention head takes a single step."""
        steps = 1 if self.head.taught_by_targets else self.time_steps(images.shape[2], images.shape[3])
        return self._taught(images, 1), (len(images), steps, self.num_classes)

    def full_pass(self, images: Tensor) -> Tensor:
        """See `Network`: the attention head takes all of its steps, for given targets never end it early."""
        return self._taught(images, self.head.steps(1))

    def _taught(self, images: Tensor, steps: int) -> Tensor:
        targets = torch.zeros(len(images), steps, dtype=torch.int64, device=images.device)
        scores: Tensor = self(images, *([targets] if self.head.taught_by_targets else []))
        return scores

    def time_steps(self, height: int, width: int) -> int:
        """Return S, the output steps of a height x width input: what a codec's `required_steps` must not exceed.

        Only shapes are computed (on the meta device), once for each size.

        Raises:
            ConfigError: the model cannot take an input of this size.
        """
        size = (height, width)
        if size not in self._known_steps:
            self.backbone.limits.check(self.spec.backbone, height, width)
            try:
                self._known_steps[size] = self.head.steps(self._map_width(height, width))
            except RuntimeError as error:
                raise ConfigError(
                    f"backbone {self.spec.backbone} cannot take a {height}x{width} input: choose a larger "
                    f"model.input_height or model.input_width"
                ) from error
        return self._known_steps[size]

    def _map_width(self, height: int, width: int) -> int:
        """Return T, the width of the backbone's map."""
        state = {name: value.to("meta") for name, value in self.backbone.state_dict(keep_vars=True).items()}
        buffers = {name: value.to("meta") for name, value in self.backbone.named_buffers()}
        images = torch.empty(2, self.spec.input_channel, height, width, device="meta")
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            feature_map: Tensor = torch.func.functional_call(self.backbone, {**state, **buffers}, (images,))
        return feature_map.shape[3]


def build_recognizer(spec: ModelSpec, num_classes: int, max_label_length: int) -> Recognizer:
    """Return a new recogniser with fresh weights.

    Args:
        spec: the `model` section of a spec.
        num_classes: classes of the codec (`Codec.num_classes`).
        max_label_length: longest text in characters; output steps of the heads Attn (one more) and Slots.

    Raises:
        ConfigError: an unknown backbone or head, an input size that the backbone cannot take, a bad num_fiducial.
    """
    recognizer = Recognizer(spec, num_classes, max_label_length)
    if recognizer.time_steps(spec.input_height, spec.input_width) < 1:
        raise ConfigError(f"model.input_width={spec.input_width} leaves {spec.backbone} no time step: widen it")
    if spec.quantize:
        simulate_int8(recognizer)
    return recognizer
