"""Scores of a model on loaders, and where the time of it went: what is slow is named, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from inkmill.config.model import ModelSpec
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.loaders.device import DeviceLoader
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources import Source
from inkmill.data.types import Text
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.decoder import TextDecoder
from inkmill.tasks.recognition.model import Recognizer
from inkmill.tasks.recognition.task import Recognition
from inkmill.timings import Timings
from inkmill.training.validate import Validation, validate

Undisturbed = Callable[[Callable[[], bool]], bool]

SLOW_S = 0.15
SAMPLES, BATCH = 24, 8
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])


class Squares(Source):
    """Gray squares, each called by a letter; slow ones take a while to come."""

    name = fingerprint = "squares"

    def __init__(self, slow: bool = False) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return SAMPLES

    def key(self, index: int) -> str:
        return str(index)

    def target(self, index: int) -> Text:
        return Text("ab"[index % 2])

    def image(self, index: int) -> bytes:
        time.sleep(SLOW_S / BATCH if self.slow else 0)
        pixels = np.full((32, 32), 10 * index, np.uint8)
        return cv2.imencode(".png", pixels)[1].tobytes()


class SlowDecoder(TextDecoder):
    """Takes a while from classes to texts."""

    def decode(self, *outputs: Any) -> Any:
        time.sleep(SLOW_S)
        return super().decode(*outputs)


class Slow(Recognition):
    """Text recognition whose decoder, or whose metric, takes a while."""

    def __init__(self, *settled: Any, what: str) -> None:
        super().__init__(*settled)
        self.what = what

    def plain_decoder(self) -> TextDecoder:
        return SlowDecoder(self.codec) if self.what == "decode" else super().plain_decoder()

    def score(self, *rows: Any) -> Any:
        time.sleep(4 * SLOW_S if self.what == "metric" else 0)
        return super().score(*rows)


class SlowModel(Recognizer):
    """Takes a while to see anything."""

    def features(self, images: torch.Tensor) -> torch.Tensor:
        if images.is_cuda:
            torch.cuda._sleep(int(SLOW_S * 2e9))
        else:
            time.sleep(SLOW_S)
        return super().features(images)


@pytest.fixture
def run() -> Callable[..., tuple[Validation, Timings]]:
    """Validates a tiny model, once before to have everything started; returns the second result and its phases."""
    settled = ModelSpec(backbone="Tiny", sequence="none", input_width=32), Charset(tuple("ab")), 3
    model = Recognition(*settled).build()

    def validated(
        device: str = "cpu", source: Squares | None = None, slow: str = "", kind: type = Recognizer
    ) -> tuple[Validation, Timings]:
        model.__class__ = kind
        plan = LoadPlan(source or Squares(), Resize(32, 32), batch_size=BATCH, shuffle=False)
        loaders = {"squares": DeviceLoader(make_loader(plan), device)}
        validate(model.to(device), loaders, Recognition(*settled))
        timings = Timings()
        return validate(model, loaders, Slow(*settled, what=slow), timings=timings), timings

    return validated


@pytest.fixture
def named(run: Callable[..., tuple[Validation, Timings]], undisturbed: Undisturbed) -> Callable[..., bool]:
    """Says whether a phase took most of the time of a run."""

    def dominates(name: str, **how: Any) -> bool:
        timings = run(**how)[1]
        others = timings.total - timings.seconds[name]
        return timings.seconds[name] > 3 * others and timings.seconds[name] > 2 * SLOW_S

    return lambda name, **how: undisturbed(lambda: dominates(name, **how))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_slow_loader_is_named(named: Callable[..., bool], device: str) -> None:
    assert named("loader", device=device, source=Squares(slow=True))


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_slow_decoding_is_named(named: Callable[..., bool], device: str) -> None:
    assert named("decode", device=device, slow="decode")


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_slow_model_is_named_and_not_who_takes_its_result(named: Callable[..., bool], device: str) -> None:
    assert named("forward", device=device, kind=SlowModel)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_slow_metric_is_named(named: Callable[..., bool], device: str) -> None:
    assert named("metric", device=device, slow="metric")


def test_the_clock_changes_no_score_and_the_phases_are_the_whole_time(
    run: Callable[..., tuple[Validation, Timings]],
) -> None:
    began = time.perf_counter()
    found, timings = run()
    assert 0 < timings.total < time.perf_counter() - began
    assert (
        min(timings.seconds[name] for name in ("loader", "forward", "decode", "metric")) > 0 == timings.seconds["ranks"]
    )
    assert found.sets["squares"].samples == SAMPLES
    assert [line.partition(":")[0] for line in found.examples] == list("012")
    assert found == run()[0]
