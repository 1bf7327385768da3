from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import inkmill
from inkmill.config.dataset import SourceSpec
from inkmill.config.load import load_spec, preset_names
from inkmill.config.spec import Spec
from inkmill.crypt import is_encrypted
from inkmill.errors import ConfigError, DataError, ModelFileError, TrainingError
from inkmill.modelfile.torch_file import load_checkpoint, read_weights, save_model
from inkmill.runtime.evaluate import evaluate
from inkmill.runtime.infer import infer
from inkmill.training.run import train

pytestmark = pytest.mark.slow

MakeSpec = Callable[..., Spec]
PowerCuts = Callable[[int], AbstractContextManager[None]]


def test_status_ends_with_success_and_history_has_every_epoch(small_spec: MakeSpec, tmp_path: Path) -> None:
    result = train(small_spec("train.validation_interval=2"))
    lines = [json.loads(line) for line in (result.folder / "status.json").read_text().splitlines()]
    assert [lines[0]["status"], lines[-1]["status"]] == ["STARTED", "SUCCESS"]
    assert [row["epoch"] for row in result.metrics["history"]] == [2, 3]


@pytest.mark.parametrize("prediction", ["CTC", "Attn", "Slots"])
@pytest.mark.parametrize("resize", ["stretch", "pad", "height", "aspect"])
def test_every_head_trains_with_every_resize_mode(small_spec: MakeSpec, prediction: str, resize: str) -> None:
    size = ["model.input_width=128"] if resize == "aspect" else []
    spec = small_spec("train.num_epochs=1", f"model.prediction={prediction}", f"model.input_resize={resize}", *size)
    history = train(spec).metrics["history"]
    assert math.isfinite(history[0]["train_loss"])
    assert math.isfinite(history[0]["val_loss"])


def test_taos_keep_aspect_ratio_trains_with_its_augmentation(small_spec: MakeSpec) -> None:
    spec = small_spec("dataset.augmentation.keep_aspect_ratio=true", "dataset.augmentation.aug_prob=1")
    assert spec.model.input_resize == "pad"
    assert math.isfinite(train(spec).metrics["history"][-1]["train_loss"])


@pytest.mark.parametrize(("interval", "cut_at"), [(3, 11), (7, 9)], ids=["within an epoch", "after its last batch"])
def test_resume_ends_as_the_run_that_never_stopped(
    small_spec: MakeSpec, tmp_path: Path, power_cut: PowerCuts, interval: int, cut_at: int
) -> None:
    settings = [
        "train.checkpoint_interval_unit=step",
        f"train.checkpoint_interval={interval}",
        "train.model_ema=true",
        "train.optim.lr_scheduler=plateau",
        "train.optim.warmup_epochs=1",
        "dataset.augmentation.aug_prob=0.8",
        "model.prediction=Attn",
    ]
    whole = train(small_spec(*settings, f"results_dir={tmp_path / 'whole'}"))
    cut = small_spec(*settings, f"results_dir={tmp_path / 'cut'}")
    with power_cut(cut_at):
        train(cut)
    resumed = train(cut)
    assert resumed.metrics["history"] == whole.metrics["history"]
    ours, theirs = read_weights(resumed.model)[0], read_weights(whole.model)[0]
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    ends = [load_checkpoint(result.folder / "ocr_model_latest.pth") for result in (whole, resumed)]
    assert ends[0]["average"]["updates"] == ends[1]["average"]["updates"] == 21
    assert ends[0]["progress"] == ends[1]["progress"]


def test_averaged_weights_of_the_attention_head_are_the_ones_scored(
    small_spec: MakeSpec, few_captchas: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inkmill.training.ema.RISE", 1)  # full decay at once, or a short run averages next to nothing
    settings = ["train.model_ema=true", "train.ema_decay=0.9", "model.prediction=Attn", f"dataset.val={few_captchas}"]
    spec = small_spec(*settings, "train.num_epochs=2")
    result = train(spec)
    last = result.metrics["history"][-1]
    weights = load_checkpoint(result.folder / "ocr_model_latest.pth")["average"]["weights"]
    _, card = read_weights(result.model)
    averaged = result.folder / "averaged.safetensors"
    save_model(averaged, weights, card)
    spec.evaluate.checkpoint, spec.evaluate.test = str(averaged), [SourceSpec(path=str(few_captchas))]
    assert evaluate(spec)["cer"] == pytest.approx(last["ema_cer"])
    assert last["ema_cer"] != last["cer"]


def test_stages_follow_one_another_and_resume_exactly(
    small_spec: MakeSpec, tmp_path: Path, power_cut: PowerCuts
) -> None:
    stages = {
        "first": {"train": {"num_epochs": 1}},
        "second": {"train": {"num_epochs": 2, "checkpoint_interval_unit": "step", "checkpoint_interval": 2}},
    }

    def recipe(folder: str) -> Spec:
        plain = small_spec(f"results_dir={tmp_path / folder}").model_dump(exclude_unset=True)
        return Spec.model_validate(plain | {"stages": stages})

    whole = train(recipe("whole"))
    first, second = (tmp_path / "whole" / name / "train" for name in stages)
    steps = load_checkpoint(next(first.glob("*.pth")))["progress"]["step"]
    with power_cut(steps + 3):
        train(recipe("cut"))
    before = (tmp_path / "cut/first/train/status.json").read_bytes()
    resumed = train(recipe("cut"))
    assert (tmp_path / "cut/first/train/status.json").read_bytes() == before  # passed over
    assert resumed.model == tmp_path / "cut/second/train/best_accuracy.safetensors"
    assert resumed.scores == whole.scores
    ours, theirs = (read_weights(model)[0] for model in (resumed.model, whole.model))
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    made = [entry.get("source") for entry in inkmill.load(second / "best_accuracy.safetensors").header.history()]
    assert made == [None, "best_accuracy.safetensors"]


def test_best_score_survives_a_resume(small_spec: MakeSpec) -> None:
    """A worse epoch after a resume must not replace a better model."""
    first = train(small_spec("train.num_epochs=3"))
    best = first.model.read_bytes()
    state = load_checkpoint(first.folder / "ocr_model_latest.pth")
    state["progress"]["best"]["word_accuracy"] = 2.0  # nothing can beat it
    torch.save(state, first.folder / "model_epoch_003_step_00021.pth")
    train(small_spec("train.num_epochs=5"))
    assert first.model.read_bytes() == best


def test_a_fresh_seed_is_drawn_once_a_run(small_spec: MakeSpec) -> None:
    spec = small_spec("train.seed=-1", "train.num_epochs=1")
    first = train(spec)
    spec.train.num_epochs = 2
    assert train(spec).metrics["history"][0] == first.metrics["history"][0]


def test_early_stop_ends_the_run_and_a_rerun_does_nothing(small_spec: MakeSpec) -> None:
    spec = small_spec("train.num_epochs=8", "train.early_stop=1", "train.optim.lr=1e-9")
    result = train(spec)
    assert result.metrics["epochs"] < 8
    assert train(spec).metrics["epochs"] == result.metrics["epochs"]


def test_bad_loss_stops_with_the_keys_of_its_batch(small_spec: MakeSpec) -> None:
    with pytest.raises(
        TrainingError, match=r"the loss became (nan|inf) on the batch of images/.*lower train\.optim\.lr"
    ):
        train(small_spec("train.optim.lr=1e30", "train.optim.warmup_epochs=0", "train.clip_grad_norm=0"))


def test_accumulated_gradients_step_once_for_several_batches(small_spec: MakeSpec) -> None:
    result = train(small_spec("train.accumulate=3", "train.num_epochs=1"))
    assert result.metrics["steps"] == 3


def test_fine_tuning_matches_the_head_by_character(small_spec: MakeSpec, few_captchas: Path, tmp_path: Path) -> None:
    first = train(small_spec())
    characters = tmp_path / "characters.txt"
    characters.write_text("\n".join("z9876543210"), "utf-8")
    again = small_spec(
        f"train.pretrained_model_path={first.model}",
        f"dataset.character_list_file={characters}",
        f"results_dir={tmp_path / 'tuned'}",
        "train.optim.lr=1e-12",
        "train.num_epochs=1",
    )
    tuned = train(again)
    old, old_card = read_weights(first.model)
    new, new_card = read_weights(tuned.model)
    for char in "0123456789":
        was, now = 1 + old_card.task_header["charset"].index(char), 1 + new_card.task_header["charset"].index(char)
        assert torch.allclose(old["head.classes.weight"][was], new["head.classes.weight"][now], atol=1e-5)


def test_a_character_list_matches_the_head_of_a_foreign_file(
    small_spec: MakeSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, card = read_weights(train(small_spec("train.num_epochs=1")).model)
    foreign, characters = tmp_path / "foreign.pth", tmp_path / "characters.txt"
    theirs = {f"module.{name.replace('head.classes', 'Prediction')}": tensor for name, tensor in weights.items()}
    torch.save(theirs, foreign)
    characters.write_text("\n".join(card.task_header["charset"]), "utf-8")
    tuned = small_spec(
        f"train.pretrained_model_path={foreign}",
        f"train.pretrained_character_list={characters}",
        f"results_dir={tmp_path / 'tuned'}",
        "train.optim.lr=1e-12",
        "train.num_epochs=1",
    )
    result = train(tuned, console=Console(width=200))
    assert f"{len(weights)} tensors taken, 0 start fresh, 0 of the file unused" in capsys.readouterr().out
    new, _ = read_weights(result.model)
    assert torch.allclose(new["head.classes.weight"], weights["head.classes.weight"], atol=1e-5)
    foreign.unlink()  # a run that resumes has its own weights
    tuned.train.num_epochs = 2
    assert train(tuned).metrics["epochs"] == 2


def test_resuming_with_another_optimiser_is_refused(small_spec: MakeSpec) -> None:
    train(small_spec("train.num_epochs=1"))
    with pytest.raises(ConfigError, match=r"another train\.optim\.name; give another results_dir"):
        train(small_spec("train.num_epochs=2", "train.optim.name=adadelta"))


def test_resuming_with_another_model_is_refused(small_spec: MakeSpec) -> None:
    train(small_spec("train.num_epochs=1"))
    with pytest.raises(ConfigError, match=r"another model\.input_width; give another results_dir"):
        train(small_spec("train.num_epochs=1", "model.input_width=96"))


def test_too_many_unusable_samples_are_refused_with_the_reasons(small_spec: MakeSpec, tmp_path: Path) -> None:
    characters = tmp_path / "characters.txt"
    characters.write_text("\n".join("012345678"), "utf-8")
    with pytest.raises(DataError, match=r"cannot be used \(\d+ out of charset\), more than dataset.max_lost=0.05"):
        train(small_spec(f"dataset.character_list_file={characters}"))


def test_unusable_samples_within_the_limit_are_left_out_and_counted(
    small_spec: MakeSpec, captchas: Path, tmp_path: Path
) -> None:
    lines = (captchas / "few.tsv").read_text("utf-8").splitlines() if (captchas / "few.tsv").exists() else []
    rows = lines or (captchas / "labels.tsv").read_text("utf-8").splitlines()[:120]
    bad = captchas / "images" / "corrupt.png"
    bad.write_bytes(b"\x89PNG\r\n\x1a\n garbage")
    mixed = captchas / "mixed.tsv"
    extra = ["images/corrupt.png\t1234", "images/0000.png\t", "images/0000.png\t" + "1" * 30, "images/0000.png\t12 4é"]
    mixed.write_text("\n".join(rows + extra) + "\n", "utf-8")
    characters = tmp_path / "characters.txt"
    characters.write_text("\n".join("0123456789 "), "utf-8")
    spec = small_spec(
        f"dataset.train={mixed}",
        f"dataset.character_list_file={characters}",
        f"dataset.val={captchas / 'few.tsv'}",
        "train.num_epochs=1",
    )
    data = train(spec).metrics["data"]
    assert data["train"] == {
        "fingerprint": data["train"]["fingerprint"],
        "used": len(rows),
        "lost": {"unreadable": 1, "empty": 1, "out_of_charset": 1, "over_length": 1},
    }


def test_evaluate_counts_unreadable_images_as_wrong_and_writes_its_files(
    small_spec: MakeSpec, few_captchas: Path, tmp_path: Path
) -> None:
    result = train(small_spec())
    (few_captchas.parent / "images" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    test = few_captchas.parent / "with_broken.tsv"
    test.write_text(few_captchas.read_text("utf-8") + "images/broken.png\t1234\n", "utf-8")
    spec = small_spec(
        f"evaluate.checkpoint={result.model}", f"evaluate.test=[{few_captchas},{test}]", "evaluate.worst=300"
    )
    by_batch = evaluate(spec)
    spec.evaluate.batch_size = 7
    assert evaluate(spec) | {"seconds": None} == by_batch | {"seconds": None}
    assert by_batch["samples"] == 241
    assert [one["samples"] for one in by_batch["sets"].values()] == [120, 121]
    folder = tmp_path / "evaluate"
    assert json.loads((folder / "metrics.json").read_text())["word_accuracy"] == by_batch["word_accuracy"]
    assert len((folder / "predictions.csv").read_text().splitlines()) == 242
    assert "broken.png" in (folder / "errors.html").read_text()


def test_infer_reads_files_folders_globs_and_lists_in_order(
    small_spec: MakeSpec, few_captchas: Path, tmp_path: Path
) -> None:
    result = train(small_spec("train.num_epochs=1", "model.input_resize=height"))
    folder = few_captchas.parent / "images"
    chosen = sorted(folder.glob("000*.png"))
    names = tmp_path / "list.txt"
    names.write_text("\n".join(map(str, chosen)), "utf-8")
    spec = small_spec(f"inference.checkpoint={result.model}")
    by_glob = list(infer(spec, [str(folder / "000*.png")])[1])
    by_list = list(infer(spec, [f"@{names}"])[1])
    assert [reading.key for reading in by_glob] == [str(path) for path in chosen]
    assert by_glob == by_list
    with pytest.raises(DataError, match="no image there"):
        list(infer(spec, [str(tmp_path / "nothing")])[1])


def test_arrays_read_as_their_files(small_spec: MakeSpec, few_captchas: Path) -> None:
    from inkmill.data.pipeline.decode import decode

    reader = inkmill.load(train(small_spec("train.num_epochs=1")).model, device="cpu")
    image = sorted((few_captchas.parent / "images").glob("01*.png"))[0]
    pixels = decode(image.read_bytes(), 3)
    assert reader.read(pixels)[0].text == reader.read(image)[0].text == reader.read(image.read_bytes())[0].text
    with pytest.raises(DataError, match="float64 array"):
        reader.read(np.zeros((4, 4)))


def test_a_file_that_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    for name, content in (("a.safetensors", b"junk"), ("b.pth", b"junk"), ("c.txt", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelFileError):
            inkmill.load(tmp_path / name)


@pytest.mark.parametrize(
    "how",
    [
        ["dataset.loader=workers", "dataset.workers=2", "dataset.cache=ram"],
        ["dataset.cache=disk"],
        pytest.param(["dataset.loader=dali", "dataset.workers=1"], marks=pytest.mark.dali),
    ],
    ids=["workers-ram", "inline-disk", "dali"],
)
def test_every_way_of_loading_trains_the_same_model(small_spec: MakeSpec, tmp_path: Path, how: list[str]) -> None:
    plain = train(small_spec("train.num_epochs=2", f"results_dir={tmp_path / 'plain'}"))
    other = train(small_spec("train.num_epochs=2", f"dataset.cache_dir={tmp_path / 'cache'}", *how))
    exact = "dali" not in how[0]
    for theirs, ours in zip(plain.metrics["history"], other.metrics["history"], strict=True):
        assert ours["train_loss"] == (theirs["train_loss"] if exact else pytest.approx(theirs["train_loss"], rel=0.05))


@pytest.mark.parametrize("preset", sorted({*preset_names()} - {"detection", "scene"}))  # which have tests of their own
def test_every_preset_of_texts_trains(preset: str, few_captchas: Path, tmp_path: Path) -> None:
    lines = few_captchas.read_text("utf-8").splitlines()
    some = few_captchas.with_name(f"some-{preset}.tsv")
    some.write_text("\n".join(lines[:4]) + "\n", "utf-8")
    spec = load_spec(preset, [f"dataset.train={some}", f"dataset.val={some}", f"results_dir={tmp_path}"])
    spec.train.validation_interval = spec.train.num_epochs = 1
    spec.dataset.workers, spec.dataset.batch_size = 0, 2
    assert math.isfinite(train(spec).metrics["history"][0]["train_loss"])


def test_the_recipe_for_scenes_trains_both_of_its_stages(few_captchas: Path, tmp_path: Path) -> None:
    (tmp_path / "few.tsv").write_text("".join(few_captchas.read_text("utf-8").splitlines(keepends=True)[:6]), "utf-8")
    for path in few_captchas.parent.glob("*/*.png"):
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        (tmp_path / path.parent.name / path.name).symlink_to(path)
    small = ["train.device=cpu", "dataset.workers=0", "dataset.batch_size=2", "dataset.cache=none"]
    short = ["stages.synthetic.dataset.synthetic.samples=4", "stages.mixed.dataset.synthetic.share=0.5"]
    epochs = [f"stages.{name}.train.{key}=1" for name in ("synthetic", "mixed") for key in ("num_epochs", "log_every")]
    overrides = [*small, *short, *epochs, f"dataset.train={tmp_path}/few.tsv", f"dataset.val={tmp_path}/few.tsv"]
    result = train(load_spec("scene", [*overrides, f"results_dir={tmp_path}"]))
    assert result.model == tmp_path / "mixed/train/best_accuracy.safetensors"
    assert math.isfinite(result.metrics["history"][0]["train_loss"])
    task = inkmill.load(result.model, "cpu").task
    assert {"ế", "A", "€", " "} <= set(task.class_names)
    assert (tmp_path / "synthetic/train/metrics.json").is_file()


def test_a_partial_cache_and_keys_without_effect_are_printed(small_spec: MakeSpec) -> None:
    console = Console(file=io.StringIO(), width=200)
    settings = ["dataset.cache=ram", "dataset.cache_gib=0.0001", "wandb={project: x}", "train.num_epochs=1"]
    train(small_spec(*settings), console=console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "keeps 52 of 108 pictures: the cap is 0.0001 GiB" in said
    assert "wandb is accepted and has no effect here" in said


def test_with_a_key_every_model_file_is_encrypted_and_the_key_is_nowhere(
    small_spec: MakeSpec, captchas: Path, tmp_path: Path
) -> None:
    console = Console(file=io.StringIO(), width=200)
    result = train(small_spec("train.num_epochs=1", "encryption_key=s3cret"), console=console)
    again = train(small_spec("train.num_epochs=2", "encryption_key=s3cret"), console=console)  # resumes
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "resuming from" in said
    assert again.metrics["epochs"] == 2
    files = [path for path in result.folder.rglob("*") if path.is_file()]
    assert all(is_encrypted(path) for path in files if path.suffix in (".pth", ".safetensors"))
    assert "s3cret" not in said
    assert not [path for path in files if b"s3cret" in path.read_bytes()]
    image = next((captchas / "images").iterdir())
    reading = inkmill.load(result.model, encryption_key="s3cret").read(image)[0]
    assert 0 <= reading.confidence <= 1
    with pytest.raises(ModelFileError, match="this encryption key does not open it"):
        inkmill.load(result.model, encryption_key="secret")
    with pytest.raises(ModelFileError, match="encrypted; give its key"):
        evaluate(small_spec(f"evaluate.checkpoint={result.model}", f"evaluate.test={captchas / 'labels.tsv'}"))
    rerun = load_spec(result.folder / "experiment.yaml")
    with pytest.raises(ConfigError, match="encryption_key was not stored"):
        train(rerun)
    card = json.loads(result.model.with_name("best_accuracy.safetensors.card.json").read_text("utf-8"))
    (speed,) = card["speeds"].values()
    assert speed > 0
    assert next(iter(card["speeds"])).startswith("images/s, validation, the CPU, ")
    assert card["data"]["train"]["fingerprint"]
    assert card["made"][0]["verb"] == "train"
