"""The sections `classification` and `multilabel` of the spec."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from inkmill.config.base import Section

Pooling = Literal["avg", "max", "both"]


class ClassesSection(Section):
    """What both kinds of classification have in common."""

    classes_file: str | None = None
    """Class names, one a line, in order; without it they are taken from the training labels, sorted."""
    pooling: Pooling = "avg"
    """How the map of the backbone becomes one vector: its average, its maximum, or both side by side."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of the pooled features that training drops."""
    mixup: float = Field(0.0, ge=0, le=10)
    """Blends training images and their labels by shares of Beta(mixup, mixup); 0: none, 0.2 is usual."""
    cutmix: float = Field(0.0, ge=0, le=10)
    """Pastes a rectangle of another training image, its area of Beta(cutmix, cutmix); 0: none, 1 is usual."""
    balance: float = Field(0.0, ge=0, le=1)
    """How far rare classes are shown more often: 0 as often as they come, 1 until each class is shown as often as the
    most frequent one, 0.5 by the square root of that (repeat factor sampling, Gupta et al. 2019). None is left out."""


class MultilabelSection(ClassesSection):
    """Any number of labels an image."""

    loss: Literal["auto", "bce", "focal", "asl"] = "auto"
    """auto is asl (asymmetric, Ridnik et al. 2021); bce weighs positives by negatives / positives, at most 20."""
    separators: str = ",;| "
    """Characters that split a label given as one text (a CSV column) into class names."""


class ClassificationSection(ClassesSection):
    """Exactly one label an image."""

    loss: Literal["auto", "ce", "bce", "focal", "asl"] = "auto"
    """auto is ce, softmax cross-entropy; the others treat each class as a question of its own."""
    smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing of ce."""
