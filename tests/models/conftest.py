"""Small recognisers for every test of the models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from inkmill.config.model import ModelSpec
from inkmill.models import Recognizer, build_recognizer

Build = Callable[..., Recognizer]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tiny models on a busy machine: threads that wait for one another cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def build() -> Build:
    """Build a recogniser of 11 classes and labels of 4 from keys of the model section, always from the same seed."""

    def make(num_classes: int = 11, max_label_length: int = 4, **keys: Any) -> Recognizer:
        torch.manual_seed(0)
        return build_recognizer(ModelSpec(**keys), num_classes, max_label_length)

    return make
