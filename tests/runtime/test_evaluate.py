"""Where `evaluate` says its time went."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from inkmill.api import load
from inkmill.config.dataset import SourceSpec
from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.data.loaders import LoadPlan, make_loader
from inkmill.data.sources import open_source
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import save_model
from inkmill.runtime.evaluate import evaluate
from inkmill.tasks.recognition import task as recognition
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.model import build_recognizer
from inkmill.tasks.recognition.task import Recognition
from inkmill.timings import Timings


@pytest.fixture
def spec(few_captchas: Path, tmp_path: Path) -> Spec:
    """A reader with fresh weights and the captchas that it is to read."""
    model = tmp_path / "reader.safetensors"
    small = ["model.backbone=Tiny", "model.sequence=none", "model.input_width=64", "evaluate.workers=0"]
    spec = load_spec(
        None, [*small, f"evaluate.checkpoint={model}", f"evaluate.test={few_captchas}", f"results_dir={tmp_path}"]
    )
    card = ModelHeader.of(Recognition(spec.model, Charset(tuple("0123456789")), 6))
    save_model(model, build_recognizer(spec.model, card.open_task().codec.num_classes, 6).state_dict(), card)
    return spec


def test_seconds_are_in_the_table_and_the_json(spec: Spec, tmp_path: Path) -> None:
    text = io.StringIO()
    began = time.perf_counter()
    seconds = evaluate(spec, console=Console(file=text, width=200))["seconds"]
    assert list(seconds) == ["loader", "forward", "decode", "metric", "total"]
    assert min(seconds.values()) > 0
    assert sum(seconds.values()) - seconds["total"] == pytest.approx(seconds["total"], abs=0.005)
    assert seconds["total"] < time.perf_counter() - began
    assert json.loads((tmp_path / "evaluate" / "metrics.json").read_text("utf-8"))["seconds"] == seconds
    rows = [line.split() for line in text.getvalue().splitlines() if "forward" in line or "share" in line]
    assert [row[1] for row in rows] == ["time", "share"]


@pytest.mark.slow
def test_a_slow_metric_is_named(
    spec: Spec, monkeypatch: pytest.MonkeyPatch, undisturbed: Callable[[Callable[[], bool]], bool]
) -> None:
    score = recognition.score

    def slow_score(truths: Sequence[str], texts: Sequence[str]) -> Any:
        time.sleep(2.0)
        return score(truths, texts)

    monkeypatch.setattr(recognition, "score", slow_score)

    def scoring() -> bool:
        seconds = evaluate(spec)["seconds"]
        return seconds["metric"] > 3 * (seconds["loader"] + seconds["forward"] + seconds["decode"])

    assert undisturbed(scoring)


def test_readers_that_do_without_torch_tell_forward_from_decoding(spec: Spec) -> None:
    """The way that beams, lexicons and ONNX Runtime go."""
    reader = load(str(spec.evaluate.checkpoint), beam_width=2)
    loader = make_loader(LoadPlan(open_source(spec.evaluate.test[0]), reader.resize, shuffle=False))
    timings = Timings()
    assert sum(len(texts) for _, texts, *_ in reader.read_batches(loader, timings)) == 120
    assert min(timings.seconds[name] for name in ("loader", "forward", "decode", "metric")) > 0


def test_labels_that_the_reader_cannot_give_are_counted_and_the_pattern_of_training_is_named(
    spec: Spec, few_captchas: Path, tmp_path: Path
) -> None:
    named = tmp_path / "named"
    named.mkdir()
    image = next(path for path in few_captchas.parent.rglob("*") if path.suffix in (".png", ".jpg")).read_bytes()
    for name in ("1234_a1.png", "99_b.png", "5678.png"):
        (named / name).write_bytes(image)
    model = Path(str(spec.evaluate.checkpoint))
    settings = {"label_pattern": "(?P<label>[0-9]+)_.*"}
    header = ModelHeader.of(Recognition(spec.model, Charset(tuple("0123456789")), 6), {"settings": settings})
    save_model(model, build_recognizer(spec.model, header.open_task().codec.num_classes, 6).state_dict(), header)
    spec.evaluate.test = [SourceSpec(path=str(named))]
    text = io.StringIO()
    metrics = evaluate(spec, console=Console(file=text, width=400))
    assert metrics["beyond"] == {"named": 2}
    said = text.getvalue()
    assert "named: 3 samples" in said
    assert "has no label file: the name 1234_a1.png matches label_pattern" in said.replace("\n", " ")
    assert (
        "named: 2 of 3 labels cannot be read right by this model: 2 hold characters that it does not know "
        "('_' 'a' 'b') and 1 are longer than its 6 characters; training took labels from names by another pattern: "
        "dataset.label_pattern='(?P<label>[0-9]+)_.*'"
    ) in said
