from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inkmill.config.spec import Spec
from inkmill.deploy.prune.run import prune
from inkmill.errors import ConfigError
from inkmill.modelfile.torch_file import load_model
from inkmill.training.run import train

pytestmark = pytest.mark.slow

MakeSpec = Callable[..., Spec]
EASY = ["train.num_epochs=2", "model.prediction=Slots", "dataset.max_label_length=4"]


@pytest.fixture
def pruned(small_spec: MakeSpec, tmp_path: Path) -> Path:
    result = train(small_spec(*EASY))
    keys = [f"prune.checkpoint={result.model}", "prune.prune_setting.amount=0.5", "prune.prune_setting.granularity=4"]
    return prune(small_spec(*EASY, *keys, f"prune.pruned_file={tmp_path}/pruned.safetensors"))


def parameters(path: Path) -> int:
    return sum(parameter.numel() for parameter in load_model(path)[0].parameters())


def history(path: Path) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads(path.with_name(f"{path.name}.card.json").read_text("utf-8"))["made"]
    return made


def test_a_pruned_reader_is_retrained_in_its_own_sizes_and_resumed(
    pruned: Path, small_spec: MakeSpec, tmp_path: Path
) -> None:
    again = [*EASY, f"results_dir={tmp_path}/again"]
    first = train(small_spec(*again, f"train.pretrained_model_path={pruned}"))
    assert parameters(first.model) == parameters(pruned)
    assert [one["verb"] for one in history(first.model)] == ["train", "prune", "train"]
    resumed = train(small_spec(*again, "train.num_epochs=5", f"train.pretrained_model_path={pruned}"))
    assert [row["epoch"] for row in resumed.metrics["history"]] == [1, 2, 3, 4, 5]
    losses = [row["train_loss"] for row in resumed.metrics["history"]]
    assert losses[-1] < losses[0]
    assert parameters(resumed.model) == parameters(pruned)
    made = history(resumed.model)
    assert [one["verb"] for one in made] == ["train", "prune", "train"]
    assert (made[1]["source"], made[1]["setting"]["amount"]) == ("best_accuracy.safetensors", 0.5)
    assert made[2]["source"] == "pruned.safetensors"
    page = resumed.model.with_name(f"{resumed.model.name}.card.md").read_text("utf-8")
    assert page.index("prune of inkmill") < page.index("train of inkmill", page.index("prune of inkmill"))
    with pytest.raises(ConfigError, match=r"began with another model than the pruned .*: give another results_dir"):
        train(small_spec(*EASY, "train.num_epochs=3", f"train.pretrained_model_path={pruned}"))


def test_taos_key_for_a_pruned_file_means_the_same_and_classes_may_change(
    pruned: Path, small_spec: MakeSpec, tmp_path: Path
) -> None:
    letters = tmp_path / "letters.txt"
    letters.write_text("\n".join("9876543210ab") + "\n", "utf-8")
    keys = [*EASY, "train.num_epochs=1", f"results_dir={tmp_path}/more", f"dataset.character_list_file={letters}"]
    result = train(small_spec(*keys, f"model.pruned_graph_path={pruned}"))
    model, card = load_model(result.model)
    assert "".join(card.task_header["charset"]) == "9876543210ab"
    before, _ = load_model(pruned)
    assert model.backbone.state_dict().keys() == before.backbone.state_dict().keys()
    assert model.get_parameter("backbone.mixing.mlp.0.weight").shape == (192, 192)


def test_what_does_not_go_with_a_pruned_file_is_one_sentence(
    pruned: Path, small_spec: MakeSpec, tmp_path: Path
) -> None:
    other = [f"results_dir={tmp_path}/other", f"train.pretrained_model_path={pruned}"]
    with pytest.raises(ConfigError, match=r"is pruned, so the model must be .*: give model\.prediction=Slots$"):
        train(small_spec(*other, "dataset.max_label_length=4"))
    with pytest.raises(ConfigError, match="name different files"):
        train(small_spec(*EASY, *other, "model.pruned_graph_path=elsewhere.pth"))
