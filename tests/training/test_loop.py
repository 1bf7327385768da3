"""The training loop's own steps, without a run around them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from inkmill.config.dataset import SourceSpec  # noqa: E402
from inkmill.config.load import load_spec  # noqa: E402
from inkmill.data.sources import open_source  # noqa: E402
from inkmill.diagnose.harness import StepHarness, take_sample  # noqa: E402
from inkmill.training import loop as training_loop  # noqa: E402


def test_a_short_batch_is_augmented_by_what_is_compiled_while_the_model_is_not(
    captchas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that a GPU records goes on as it was recorded: run uncompiled at first, it would stay so for good."""
    small = ["model.backbone=VGG", "model.feature_channel=8", "model.sequence=none", "model.input_width=64"]
    spec = load_spec(
        None, [*small, "train.device=cpu", "train.compile=true", "dataset.batch_size=8", f"results_dir={tmp_path}"]
    )
    rig = StepHarness(
        spec,
        take_sample(spec, open_source(SourceSpec(path=str(captchas / "labels.tsv"))), lambda line: None, 16).prepared,
    )
    compilations: list[str] = []

    def counted(name: str) -> Any:
        def backend(graph: Any, inputs: Any) -> Any:
            compilations.append(name)
            return graph.forward

        return torch.compile(lambda x: x + 1, backend=backend, dynamic=False)

    prepare, forward = training_loop.augmented_images, rig.loop.model.forward

    def augmented(batch: Any) -> Any:
        counted("augmentation")(torch.zeros(3))
        return prepare(batch)

    def read(*given: Any, **named: Any) -> Any:
        counted("model")(torch.zeros(3))
        return forward(*given, **named)

    monkeypatch.setattr(training_loop, "augmented_images", augmented)
    monkeypatch.setattr(rig.loop.model, "forward", read)
    batch = next(rig.repeated())
    rows = slice(0, 7)
    rig.step(
        replace(
            batch,
            images=batch.images[rows],
            widths=batch.widths[rows],
            targets=batch.targets[rows],
            keys=batch.keys[rows],
            index=batch.index[rows],
        )
    )
    rig.close()
    assert compilations == ["augmentation"]
