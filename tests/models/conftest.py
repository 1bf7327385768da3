"""Small recognisers for every test of the models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inkmill.config.model import ModelSpec
from inkmill.models import Recognizer, build_recognizer

Build = Callable[..., Recognizer]


@pytest.fixture
def build() -> Build:
    """Build a recogniser of 11 classes and labels of 4 from keys of the model section, always from the same seed."""

    def make(num_classes: int = 11, max_label_length: int = 4, **keys: Any) -> Recognizer:
        torch.manual_seed(0)
        return build_recognizer(ModelSpec(**keys), num_classes, max_label_length)

    return make
