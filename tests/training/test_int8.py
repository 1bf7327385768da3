from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import inkmill
from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.deploy.prune.run import prune
from inkmill.errors import ConfigError, InkmillError
from inkmill.modelfile.torch_file import load_model
from inkmill.nn.backbones.base import Backbone
from inkmill.nn.fake_int8 import PACE, measure
from inkmill.nn.simulate import is_simulated
from inkmill.tasks.recognition.model import build_recognizer
from inkmill.training.checkpoint import find_latest
from inkmill.training.int8 import fold_and_compare
from inkmill.training.run import train

pytestmark = pytest.mark.slow  # two readers are trained

MakeSpec = Callable[..., Spec]
EASY = ["model.prediction=Slots", "dataset.max_label_length=4", "train.num_epochs=2"]


@dataclass
class Runs:
    """A reader in float, and one that was fine-tuned from it with simulated int8."""

    float_reader: Path
    int8_reader: Path
    folder: Path
    overrides: list[str]


@pytest.fixture(scope="module")
def runs(few_captchas: Path, small_settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("int8")
    overrides = [f"dataset.train={few_captchas}", *small_settings, *EASY]
    reader = train(load_spec(None, [*overrides, f"results_dir={folder}/float"])).model
    keys = ["model.quantize=true", f"train.pretrained_model_path={reader}", "quantize.calibration_images=40"]
    overrides += [*keys, f"results_dir={folder}/int8"]
    return Runs(reader, train(load_spec(None, overrides)).model, folder, overrides)


def test_fine_tuning_moves_weights_and_ranges_and_the_file_reads_alone(runs: Runs) -> None:
    model, card = load_model(runs.int8_reader)
    assert is_simulated(model)
    assert card.model.quantize
    ranges = [float(tensor) for name, tensor in model.state_dict().items() if name.endswith("largest")]
    assert len(ranges) > 12
    assert min(ranges) > 0
    assert float(model.get_buffer("backbone.convolutions.0.0.reads.largest")) <= 1  # of pixels in -1..1
    before, _ = load_model(runs.float_reader)
    moved = model.get_parameter("head.classes.weight") - before.get_parameter("head.classes.weight")
    assert 0 < float(moved.detach().abs().max()) < 0.2
    facts = json.loads(runs.int8_reader.with_name(f"{runs.int8_reader.name}.card.json").read_text("utf-8"))
    assert [step["verb"] for step in facts["made"]] == ["train", "train"]
    assert facts["made"][1]["simulates"] == "int8"
    assert facts["made"][1]["source"] == runs.float_reader.name


def test_what_scores_and_reads_rounds_as_int8_does(runs: Runs, captchas: Path) -> None:
    reader = inkmill.load(runs.int8_reader, "cpu")
    images = sorted((captchas / "images").iterdir())[:8]
    rounded = [reading.confidence for reading in reader.read(images)]
    measure(reader.model, 0.0)
    assert [reading.confidence for reading in reader.read(images)] != rounded
    measure(reader.model, None)
    assert [reading.confidence for reading in reader.read(images)] == rounded


def test_a_resumed_run_continues_from_the_ranges_of_its_checkpoint(runs: Runs, tmp_path: Path) -> None:
    shutil.copytree(runs.folder / "int8", tmp_path / "int8")
    overrides = [*runs.overrides, f"results_dir={tmp_path}/int8", "train.num_epochs=3"]
    latest = find_latest(tmp_path / "int8" / "train")
    assert latest is not None
    state = torch.load(latest, weights_only=True)
    # So large that no batch of the resumed epoch matters beside them, whatever this processor's arithmetic makes of it:
    # each step then leaves 1 - PACE of a range, and a new measurement would be a thousand times smaller.
    ranges = [name for name in state["model"] if name.endswith("largest")]
    for name in ranges:
        state["model"][name] *= 1000
    torch.save(state, latest)

    more = train(load_spec(None, overrides))
    assert [row["epoch"] for row in more.metrics["history"]] == [1, 2, 3]
    newest = find_latest(tmp_path / "int8" / "train")
    assert newest != latest
    assert newest is not None
    after = torch.load(newest, weights_only=True)
    steps = _steps(newest) - _steps(latest)
    assert steps > 0
    for name in ranges:
        assert float(after["model"][name] / state["model"][name]) == pytest.approx((1 - PACE) ** steps, rel=0.02)
    with pytest.raises(ConfigError, match=r"this run began with another model\.quantize"):
        train(load_spec(None, [*overrides, "model.quantize=false"]))


def _steps(checkpoint: Path) -> int:
    return int(checkpoint.resolve().stem.rpartition("_")[2])


def test_a_reader_for_int8_is_fine_tuned_further_and_taos_key_names_it(runs: Runs, small_spec: MakeSpec) -> None:
    keys = [*EASY, "train.num_epochs=1", "model.quantize=true", "quantize.calibration_images=40"]
    result = train(small_spec(*keys, f"model.quantize_model_path={runs.int8_reader}"))
    assert is_simulated(load_model(result.model)[0])
    with pytest.raises(ConfigError, match=r"was trained for int8: fine-tune it with model\.quantize=true"):
        train(small_spec(*EASY, f"train.pretrained_model_path={runs.int8_reader}", f"results_dir={runs.folder}/no"))


def test_a_pruned_reader_is_trained_for_int8_and_resumed(runs: Runs, small_spec: MakeSpec, tmp_path: Path) -> None:
    keys = [
        f"prune.checkpoint={runs.float_reader}",
        "prune.prune_setting.amount=0.5",
        "prune.prune_setting.granularity=4",
    ]
    pruned = prune(small_spec(*EASY, *keys, f"prune.pruned_file={tmp_path}/pruned.safetensors"))
    keys = [*EASY, "model.quantize=true", "quantize.calibration_images=40", f"model.pruned_graph_path={pruned}"]
    result = train(small_spec(*keys, "train.num_epochs=1"))
    name = "backbone.convolutions.0.0.weight"
    narrow = load_model(pruned)[0].get_parameter(name).shape
    assert load_model(result.model)[0].get_parameter(name).shape == narrow
    assert narrow[0] < 16
    assert len(train(small_spec(*keys)).metrics["history"]) == 2


def test_what_does_not_go_is_one_sentence(runs: Runs, small_spec: MakeSpec) -> None:
    with pytest.raises(ConfigError, match=r"fine-tunes a trained model .*: give train\.pretrained_model_path"):
        train(small_spec("model.quantize=true"))
    with pytest.raises(ConfigError, match=r"add model\.quantize=true"):
        train(small_spec(f"model.quantize_model_path={runs.float_reader}"))
    with pytest.raises(ConfigError, match="is quantised: prune the reader that it was made from"):
        prune(small_spec(f"prune.checkpoint={runs.int8_reader}"))


class Odd(Backbone):
    """A norm that is not all that reads its convolution."""

    out_channels = 8

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8)
        self.norm.bias.data.fill_(1.0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a map."""
        y = self.convolution(images)
        out: torch.Tensor = self.norm(y) + y
        return out


def test_a_norm_that_cannot_be_folded_is_refused(small_spec: MakeSpec) -> None:
    model = build_recognizer(small_spec().model, 11, 4).eval()
    model.backbone = Odd().eval()
    with pytest.raises(InkmillError, match="batch norms of backbone Tiny cannot be folded"):
        fold_and_compare(model)
