"""The classifier: images to one logit a class, backbone -> pooling over the map -> dropout -> linear."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from inkmill.config.model import ModelSpec
from inkmill.errors import ConfigError
from inkmill.nn.backbones import build_backbone
from inkmill.nn.init import initialise
from inkmill.nn.simulate import simulate_int8
from inkmill.tasks.classification.losses import Loss
from inkmill.tasks.classification.mixing import mix, sample_mixing
from inkmill.tasks.classification.spec import Pooling
from inkmill.tasks.model import TaskModel, Tensors, to_device

PROBABILITIES = "probabilities"


class Classifier(TaskModel):
    """A classifier.

    Args:
        spec: backbone and input; text's own keys (TPS, sequence, prediction) have no effect.
        num_classes: C.
        exclusive: softmax over the classes, else a sigmoid each.
        pooling, dropout: see the section of the spec.
        loss: from logits and targets (B, C).
        positive_weight: float (C,), what a positive of each class weighs, where the loss takes it; see `losses`.
        mixing: alpha of mixup and of CutMix; 0 for none.
    """

    positive_weight: Tensor | None

    def __init__(
        self,
        spec: ModelSpec,
        num_classes: int,
        exclusive: bool,
        pooling: Pooling,
        dropout: float,
        loss: Loss,
        positive_weight: Tensor | None = None,
        mixing: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        super().__init__()
        if spec.TPS:
            raise ConfigError("model.TPS straightens text; a classifier has no use for it: leave it out")
        self.spec = spec
        self.exclusive = exclusive
        self.pooling = pooling
        self._loss = loss
        self._mixing = mixing
        # It follows the model to its device, and is no part of a file: reading has no use for it.
        self.register_buffer("positive_weight", positive_weight, persistent=False)
        self.backbone = build_backbone(spec, keep_width=False)
        self.rectifier: nn.Module = nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.classes = nn.Linear(self.backbone.out_channels * (2 if pooling == "both" else 1), num_classes)
        initialise(self.classes)
        if spec.quantize:
            simulate_int8(self)

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features of (B, C, H, W) images: (B, channels), twice as many where pooling is "both"."""
        feature_map: Tensor = self.backbone(images)
        pooled = []
        if self.pooling in ("avg", "both"):
            pooled.append(feature_map.mean(dim=(2, 3)))
        if self.pooling in ("max", "both"):
            pooled.append(feature_map.amax(dim=(2, 3)))
        return torch.cat(pooled, dim=1)

    def forward(self, images: Tensor, *taught: Tensor) -> Tensor:
        """Return logits (B, C)."""
        logits: Tensor = self.classes(self.dropout(self.features(images)))
        return logits

    def mixed(
        self, images: Tensor, targets: Tensors, seed: int, epoch: int, index: NDArray[np.int64]
    ) -> tuple[Tensor, Tensors]:
        """See TaskModel.mixed."""
        if not any(self._mixing):
            return images, targets
        numbers = to_device(sample_mixing(*self._mixing, seed, epoch, index), images.device)
        mixed, labels = mix(images, targets[0], numbers)
        return mixed, (labels,)

    def loss(self, outputs: Tensor, targets: Tensors) -> Tensor:
        """See TaskModel.loss; targets are float32 (B, C)."""
        weight = {} if self.positive_weight is None else {"positive_weight": self.positive_weight}
        return self._loss(outputs, targets[0], **weight)

    def outputs(self, images: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """See TaskModel.outputs."""
        return {PROBABILITIES: self._probabilities(self(images))}

    def outputs_and_loss(
        self, images: Tensor, targets: Tensors, names: tuple[str, ...]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """See TaskModel.outputs_and_loss."""
        logits = self(images)
        return {PROBABILITIES: self._probabilities(logits)}, self.loss(logits, targets)

    def _probabilities(self, logits: Tensor) -> Tensor:
        logits = logits.float()
        return logits.softmax(dim=1) if self.exclusive else logits.sigmoid()

    def class_axes(self) -> dict[str, tuple[int, int]]:
        """See TaskModel.class_axes."""
        return {"classes.weight": (0, 0), "classes.bias": (0, 0)}

    def feature_axes(self) -> dict[str, int]:
        """See Network.feature_axes."""
        return {"classes.weight": 1}

    def described(self) -> str:
        """Return backbone, pooling and the kind of labels."""
        return f"{self.spec.backbone} + {self.pooling} pooling + {'softmax' if self.exclusive else 'sigmoid'}"

    def probe(self, images: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """See Network.probe."""
        return self(images), (len(images), self.classes.out_features)

    def full_pass(self, images: Tensor) -> Tensor:
        """See Network.full_pass."""
        logits: Tensor = self(images)
        return logits
