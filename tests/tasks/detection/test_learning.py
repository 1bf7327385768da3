"""The detector learns pages by heart with either loss; and a run through all verbs, from a folder to a Detector."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest
import torch

from inkmill.config.load import load_spec
from inkmill.config.model import ModelSpec
from inkmill.errors import ConfigError, InkmillError
from inkmill.tasks.detection.model import maps_on_cpu
from inkmill.tasks.detection.spec import DetectionSection
from inkmill.tasks.detection.task import Detection


def _drawn() -> ModuleType:
    place = importlib.util.spec_from_file_location("drawn", Path(__file__).parent / "drawn.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


drawn = _drawn()
SIDE = 96


@pytest.mark.parametrize("loss", ["dice_focal", "bce"])
def test_a_detector_learns_a_few_pages_by_heart(loss: str) -> None:
    torch.manual_seed(0)
    model = ModelSpec(backbone="tiny", input_channel=3, input_width=SIDE, input_height=SIDE)
    task = Detection(model, DetectionSection(loss=loss, box_threshold=0.5))  # type: ignore[arg-type]
    network = task.build()
    optimizer, rng, steps = torch.optim.AdamW(network.parameters(), lr=8e-3), np.random.default_rng(3), 40
    images, truths = zip(*(drawn.page(rng, SIDE) for _ in range(3)), strict=True)
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).sub(127.5).div(127.5)
    maps = maps_on_cpu(task.encode(truths), None, (SIDE, SIDE), task.map_options, torch.device("cpu"))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 8e-3 * min(1, (step + 1) / 8) * (1 - 0.9 * step / steps)
        network.loss(network(pixels), (maps,)).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():  # with the batch's own statistics: an average over 40 steps knows too little
        found = {name: one.numpy() for name, one in network.outputs(pixels, ("probabilities",)).items()}
    scores = task.score(truths, task.decoder().decode(found))
    assert scores.regions >= 4
    assert scores.hmean > 0.7
    assert scores.hmean_iou70 > 0.5


@pytest.mark.slow
def test_a_folder_becomes_a_detector_that_finds_the_same_without_torch(tmp_path: Path) -> None:
    from inkmill.deploy.export.run import export
    from inkmill.deploy.prune.run import prune
    from inkmill.runtime import Detector
    from inkmill.runtime.evaluate import evaluate
    from inkmill.runtime.infer import infer
    from inkmill.training.run import train

    folder = drawn.write_set(tmp_path / "set", 10, 128)
    settings = (
        f"dataset.train={folder}",
        "model.backbone=tiny",
        "model.input_width=64",
        "model.input_height=64",
        "detection.short_side=128",
        "detection.long_side=160",
        "dataset.batch_size=4",
        "dataset.workers=0",
        "train.num_epochs=2",
        "train.validation_interval=2",
        "train.device=cpu",
        f"results_dir={tmp_path}",
    )
    # 1. Train on parts, validate whole pictures.
    result = train(load_spec("detection", settings))
    assert set(result.scores) == {"hmean", "precision", "recall", "hmean_iou70", "cleval"}
    # 2. Score, read, prune and export that file.
    model = f"evaluate.checkpoint={result.model}"
    metrics = evaluate(load_spec("detection", (*settings, model, f"evaluate.test={folder}", "evaluate.workers=0")))
    assert metrics["samples"] == 10
    files = [str(folder / "images" / f"p{number}.png") for number in range(3)]
    fields, found = infer(
        load_spec("detection", (*settings, f"inference.checkpoint={result.model}")), files, draw=tmp_path / "drawn"
    )
    assert fields == ("count", "regions", "left_out")
    assert len(list(found)) == 3
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == ["p0.jpg", "p1.jpg", "p2.jpg"]
    smaller = prune(load_spec("detection", (*settings, f"prune.checkpoint={result.model}")))
    assert smaller.stat().st_size < result.model.stat().st_size
    graph = export(load_spec("detection", (*settings, f"export.checkpoint={result.model}", f"evaluate.test={folder}")))
    # 3. The exported file finds what the trained one does, on pictures of any size.
    torch_one, onnx_one = (Detector(file, "cpu", box_threshold=0.0) for file in (result.model, graph))
    picture = cv2.resize(cv2.imread(files[0]), (250, 190))[:, :, ::-1]
    for ours, theirs in zip(torch_one.detect([*files, picture]), onnx_one.detect([*files, picture]), strict=True):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.points, other.points, atol=1.5)
    larger = Detector(graph, short_side=256, threads=1)
    assert larger.reader.resize.page_size(128, 128) == (256, 256)
    with pytest.raises(ConfigError, match="takes no colour"):
        Detector(graph, colour=1)


def test_without_a_file_the_packages_own_weights_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from inkmill import weights
    from inkmill.runtime import Detector

    monkeypatch.setattr(weights, "FOLDER", tmp_path)
    with pytest.raises(InkmillError, match="carries no detector"):
        Detector()
