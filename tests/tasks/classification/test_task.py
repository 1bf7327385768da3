"""Classification through the verbs, and what its task promises to every room that knows only the protocol."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("torch")

from inkmill.api import load
from inkmill.config.load import load_spec
from inkmill.config.model import ModelSpec
from inkmill.data.types import Labels, Polygons, Text
from inkmill.errors import ConfigError, DataError
from inkmill.runtime.evaluate import evaluate
from inkmill.tasks.classification.task import Classes, Classification, Multilabel, read_classes, split_names
from inkmill.training.prepare import prepare
from inkmill.training.run import train

SMALL = ["model.backbone=Tiny", "model.sequence=none", "model.input_width=96", "model.input_height=32"]


@pytest.fixture(scope="module")
def digits(writable_captchas: Path) -> Path:
    """Which digits occur in each of 600 captchas: a natural multi-label set of real images."""
    rows = (writable_captchas / "labels.tsv").read_text("utf-8").splitlines()[::8][:600]
    pairs = [row.split("\t") for row in rows]
    file = writable_captchas / "digits.ssv"
    file.write_text("".join(f"{name} {' '.join(sorted(set(text)))}\n" for name, text in pairs), "utf-8")
    return file


def spec_of(task: str, data: Path, folder: Path, *more: str):
    common = ["dataset.workers=0", "dataset.cache=ram", "train.device=cpu", "train.optim.name=adamw"]
    return load_spec(None, [f"task={task}", f"dataset.train={data}", f"results_dir={folder}", *common, *SMALL, *more])


@pytest.mark.slow
def test_one_command_learns_which_digits_occur(digits: Path, tmp_path: Path) -> None:
    more = ["train.num_epochs=12", "dataset.batch_size=16", "train.optim.lr=2e-3", "train.optim.lr_scheduler=one_cycle"]
    result = train(spec_of("multilabel", digits, tmp_path, *more))
    shown = np.mean([len(line.split()) - 1 for line in digits.read_text("utf-8").splitlines()]) / 10
    assert result.metrics["map"] > shown + 0.15  # guessing gives the share of the positives
    # The thresholds that validation found travel in the file, and reading uses them.
    reader = load(result.model)
    header = json.loads(json.dumps(reader.header.task_header))
    assert header["classes"] == list("0123456789")
    assert set(header["thresholds"]) != {0.5}
    metrics = evaluate(
        load_spec(None, [f"evaluate.checkpoint={result.model}", f"evaluate.test={digits}", f"results_dir={tmp_path}"])
    )
    assert {"map", "f1_micro", "f1_macro", "per_class", "without_positives"} <= metrics.keys()
    assert metrics["per_class"]["7"]["threshold"] == pytest.approx(header["thresholds"][7])
    image = digits.parent / digits.read_text("utf-8").split(" ", 1)[0]
    (found,) = reader.read([image])
    assert isinstance(found, Classes)
    assert set(found.labels) <= set("0123456789")


@pytest.mark.parametrize(("balance", "often"), [(0.0, [8, 2, 1]), (0.5, [8, 4, 2.83]), (1.0, [8, 8, 8])])
def test_balance_shows_rare_classes_more_often(balance: float, often: list[float], tmp_path: Path) -> None:
    image = cv2.imencode(".png", np.zeros((32, 96, 3), np.uint8))[1].tobytes()
    for name, count in {"many": 8, "few": 2, "one": 1}.items():
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number}.png").write_bytes(image)
    spec = spec_of("classification", tmp_path, tmp_path / "results", f"dataset.val={tmp_path}")
    spec.classification.balance = balance
    source = prepare(spec, tmp_path / "cache", lambda line: None).train.source
    keys, targets = source.described(range(len(source)))
    counts = Counter(target.names[0] for target in targets)
    assert [counts[name] for name in ("many", "few", "one")] == pytest.approx(often, abs=1)
    assert len(set(keys)) == 11  # no image is left out


def test_text_targets_are_class_names() -> None:
    one = Classification(ModelSpec(), ["a b", "c"])
    assert one.truths([Text("a b"), Labels(("c",))])[0].tolist() == [1, 0]
    many = Multilabel(ModelSpec(), ["a", "b", "c"])
    assert many.truths([Text("a;c"), Text("b, a"), Text("")])[1].tolist() == [1, 1, 0]


def test_unknown_labels_are_minus_one_all_the_way_to_the_loss() -> None:
    task = Multilabel(ModelSpec(), ["a", "b", "c"])
    truths = task.truths([Labels(("a",), ("c",))])
    assert truths[0].tolist() == [1, 0, -1]
    assert task.encode(truths)[0].tolist() == [[1.0, 0.0, -1.0]]


def test_a_class_that_is_not_listed_names_the_nearest() -> None:
    with pytest.raises(DataError, match=r"'dgo'.*did you mean 'dog'"):
        Classification(ModelSpec(), ["cat", "dog"]).truths([Labels(("dgo",))])


def test_samples_that_cannot_be_used_are_named_with_their_reason() -> None:
    rules = Classification(ModelSpec(), ["cat", "dog"]).rules()
    polygons = Polygons((), ())
    targets = [Labels(("cat",)), Labels(()), Labels(("cat", "dog")), Labels(("cow",)), polygons, None]
    judged = rules.judge().judge(targets, np.ones((6, 2), np.int32), lost=())
    assert [(offset, reason) for offset, reason, _ in judged.faults] == [
        (1, "not_one_class"),
        (2, "not_one_class"),
        (3, "unknown_class"),
        (4, "no_classes"),
    ]


def test_check_counts_classes_pairs_and_those_that_no_image_shows() -> None:
    judge = Multilabel(ModelSpec(), ["a", "b", "never"]).rules().judge()
    judge.judge([Labels(("a", "b")), Labels(("b",), ("a",)), Labels(())], np.ones((3, 2), np.int32), lost=())
    facts = judge.facts()
    assert facts["classes"] == {"b": 2, "a": 1}
    assert (facts["absent"], facts["unknown"], facts["without_class"]) == (["never"], {"a": 1}, 1)
    assert facts["together"] == {"a + b": 1}


def test_labels_are_those_at_or_above_their_thresholds() -> None:
    probabilities = np.array([[0.4, 0.6, 0.1], [0.1, 0.2, 0.3]], np.float32)
    many = Multilabel(ModelSpec(), ["a", "b", "c"], [0.4, 0.7, 0.3]).plain_decoder()
    assert [one.labels for one in many.decode({"probabilities": probabilities})] == [("a",), ("c",)]
    one = Classification(ModelSpec(), ["a", "b", "c"]).plain_decoder()
    assert [found.labels for found in one.decode({"probabilities": probabilities})] == [("b",), ("c",)]


@pytest.mark.parametrize(
    "part",
    [
        {"classes": []},
        {"classes": ["a", "a"]},
        {"classes": ["a"], "thresholds": [0.5, 0.5]},
        {"classes": ["a"], "unknown_key": 1},
        {"classes": ["a"], "pooling": "median"},
    ],
)
def test_a_header_that_cannot_be_is_refused(part: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - pydantic's is one
        Multilabel.from_header(ModelSpec(), part)


def test_a_header_comes_back_as_the_same_task() -> None:
    task = Multilabel(ModelSpec(), ["a", "b"], [0.25, 0.75])
    again = Multilabel.from_header(ModelSpec(), json.loads(json.dumps(task.header())))
    assert (again.classes, again.thresholds, again.header()) == (task.classes, task.thresholds, task.header())


@pytest.mark.parametrize("pooling", ["avg", "max", "both"])
@pytest.mark.parametrize("loss", ["bce", "focal", "asl"])
def test_every_pooling_and_loss_learns_from_a_batch(pooling: str, loss: str) -> None:
    import torch

    from inkmill.tasks.classification.spec import MultilabelSection

    torch.manual_seed(1)
    section = MultilabelSection(pooling=pooling, loss=loss)  # type: ignore[arg-type]
    counts = (np.array([3, 1, 2]), np.array([8, 8, 8]))
    task = Multilabel(ModelSpec(backbone="Tiny", input_width=32), ["a", "b", "c"], (), section, counts)
    model = task.build().train()
    images, targets = torch.randn(8, 1, 32, 32), (torch.rand(8, 3) < 0.4).float()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        value = model.loss(model(images), (targets,))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < 0.7 * losses[0]


def test_a_classifier_straightens_no_text() -> None:
    with pytest.raises(ConfigError, match=r"model\.TPS"):
        Classification(ModelSpec(TPS=True), ["a"]).build()


def test_names_are_split_at_any_separator_and_counted_once() -> None:
    assert split_names(" cat;dog , cat|", ",;|") == ("cat", "dog")
    assert split_names("New York", "") == ("New York",)


def test_a_file_of_classes_is_read_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_text("dog\n\ncat\n", "utf-8")
    assert read_classes(str(file)) == ["dog", "cat"]
    file.write_text("dog\ndog\n", "utf-8")
    with pytest.raises(ConfigError, match="'dog' comes twice"):
        read_classes(str(file))


def test_a_timm_encoder_has_its_own_strides() -> None:
    import torch

    pytest.importorskip("timm")
    spec = ModelSpec(backbone="resnet18", sequence="none", input_height=64, input_width=64, input_channel=3)
    model = Classification(spec, ["a", "b"]).build().eval()
    with torch.no_grad():
        assert model.backbone(torch.zeros(1, 3, 64, 64)).shape == (1, 512, 2, 2)
        assert model(torch.zeros(1, 3, 96, 64)).shape == (1, 2)


def test_a_folder_a_class_needs_no_label_file(captchas: Path, tmp_path: Path) -> None:
    from inkmill.training.prepare import prepare

    for number, image in enumerate(sorted((captchas / "images").iterdir())[:40]):
        folder = tmp_path / "photos" / ("even" if number % 2 == 0 else "odd")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / image.name).write_bytes(image.read_bytes())
    spec = load_spec(None, ["task=classification", f"dataset.train={tmp_path / 'photos'}", *SMALL])
    said: list[str] = []
    prepared = prepare(spec, tmp_path / "check", said.append)
    assert prepared.task.class_names == ("even", "odd")
    assert any("class_folders" in line for line in said)


def test_the_error_page_shows_each_class_its_surest_mistakes() -> None:
    task = Multilabel(ModelSpec(), ["a", "b"])
    truths = list(np.array([[0, 1], [0, 1], [1, 0], [0, -1]], np.int8))
    rows = np.array([[0.6, 0.9], [0.9, 0.2], [0.8, 0.1], [0.1, 0.9]], np.float32)
    predictions = task.plain_decoder().decode({"probabilities": rows})
    groups = dict(task.worst_errors(truths, predictions, 100))
    assert groups == {"a: false positives (2)": [1, 0], "b: false negatives (1)": [1]}  # the unknown b is no mistake


def test_an_error_page_of_many_classes_keeps_to_its_limit() -> None:
    classes = [f"c{number}" for number in range(50)]
    task = Classification(ModelSpec(), classes)
    rows = np.roll(np.eye(50, dtype=np.float32), 1, axis=1).repeat(4, axis=0)
    truths = list(np.eye(50, dtype=np.int8).repeat(4, axis=0))
    groups = task.worst_errors(truths, task.plain_decoder().decode({"probabilities": rows}), 30)
    assert sum(len(positions) for _, positions in groups) == 30


@pytest.mark.slow
def test_training_with_mixed_images_resumes_exactly(digits: Path, tmp_path: Path) -> None:
    more = [
        "train.num_epochs=2",
        "train.seed=5",
        "multilabel.mixup=0.2",
        "multilabel.cutmix=1",
        "dataset.batch_size=64",
    ]
    whole = train(spec_of("multilabel", digits, tmp_path / "whole", *more))
    train(spec_of("multilabel", digits, tmp_path / "parts", *more, "train.num_epochs=1"))
    parts = train(spec_of("multilabel", digits, tmp_path / "parts", *more))
    plain = train(spec_of("multilabel", digits, tmp_path / "plain", *more, "multilabel.mixup=0", "multilabel.cutmix=0"))
    assert parts.metrics["loss"] == whole.metrics["loss"]
    assert plain.metrics["loss"] != whole.metrics["loss"]
