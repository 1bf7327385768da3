from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inkmill.config.load import load_spec, preset_names, require, split_arguments
from inkmill.config.spec import Spec
from inkmill.errors import ConfigError

TAO_EXAMPLE = Path(__file__).parent.parent / "data" / "tao_example.yaml"
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_spec(text: str) -> Path:
        file = tmp_path / "spec.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write_spec


def refusal(file: Path | str | None = None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_spec(file, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_taos_example_loads_unchanged() -> None:
    spec = load_spec(TAO_EXAMPLE)
    assert (spec.model.TPS, spec.model.backbone, spec.model.prediction) == (True, "ResNet", "CTC")
    assert (spec.train.optim.name, spec.train.optim.rate, spec.train.gpu_ids) == ("adadelta", 1.0, [0])
    assert spec.evaluate.results_dir == "/results/evaluate"
    assert spec.dataset_convert.results_dir == "/results/convert_dataset"
    assert [source.path for source in spec.dataset.sources("val")] == ["/data/test/lmdb"]
    assert spec.evaluate.checkpoint is None


def test_a_mandatory_key_is_missed_by_its_own_verb_only() -> None:
    spec = load_spec(TAO_EXAMPLE)
    with pytest.raises(
        ConfigError, match=r"^evaluate needs evaluate\.checkpoint: give .*, evaluate\.checkpoint=VALUE, or the key in"
    ):
        require(spec, "evaluate.checkpoint", "evaluate")
    given = load_spec(TAO_EXAMPLE, ["evaluate.checkpoint=a.safetensors"])
    assert require(given, "evaluate.checkpoint", "evaluate") == "a.safetensors"


def test_without_anything_the_defaults_hold() -> None:
    assert load_spec() == Spec()


def test_an_empty_file_is_the_defaults(write: Write) -> None:
    assert load_spec(write("# nothing\n")) == Spec()


@pytest.mark.parametrize("name", preset_names())
def test_every_shipped_preset_loads_by_its_name(name: str) -> None:
    assert load_spec(name) == load_spec(preset=name) != Spec()


def test_the_presets_are_those_that_the_documentation_names() -> None:
    assert preset_names() == ["captcha", "detection", "line", "scene", "tao"]


def test_later_wins_sections_merge_and_lists_are_replaced(write: Write) -> None:
    file = write("train: {num_epochs: 3, gpu_ids: [1, 2]}\nmodel: {hidden_size: 64}\n")
    spec = load_spec(file, ["train.gpu_ids=[0]", "train.optim.lr=0.5"], preset="captcha")
    assert spec.model.backbone == "Tiny"
    assert (spec.model.hidden_size, spec.train.num_epochs, spec.train.gpu_ids) == (64, 3, [0])
    assert (spec.train.optim.lr, spec.train.optim.name) == (0.5, "adamw")


@pytest.mark.parametrize(
    ("overrides", "rate"),
    [
        (["train.optim.name=adamw"], 1e-3),
        (["train.optim.name=adam"], 1e-3),
        (["train.optim.name=adadelta"], 1.0),
        (["train.optim.name=adam", "train.optim.lr=1.0"], 1.0),
        (["train.optim.name=adamw", "train.num_epochs=3"], 1e-3),
    ],
)
def test_each_optimiser_has_a_learning_rate_of_its_own(overrides: list[str], rate: float) -> None:
    assert load_spec("tao", overrides).train.optim.rate == rate
    spec = load_spec(None, overrides)
    assert spec.train.optim.rate == rate
    spec.train.optim.momentum = 0.8  # later assignments leave it
    assert spec.train.optim.rate == rate


def test_overrides_are_typed_as_yaml_and_text_stays_text() -> None:
    spec = load_spec(
        None,
        [
            "model.TPS=true",
            "train.optim.lr=1e-3",
            "dataset.train=[a, {path: b, weight: 2}]",
            "results_dir=2024",
            "dataset.label_pattern=[0-9]+",
            "train.early_stop=null",
            "evaluate.checkpoint='a=b'",
        ],
    )
    assert (spec.model.TPS, spec.train.optim.lr, spec.results_dir) == (True, 0.001, "2024")
    assert [(source.path, source.weight) for source in spec.dataset.train] == [("a", 1.0), ("b", 2.0)]
    assert spec.dataset.label_pattern == "[0-9]+"
    assert spec.evaluate.checkpoint == "a=b"


def test_values_from_python_are_taken_as_they_are_and_left_alone() -> None:
    source = {"path": "a=b [c]"}
    spec = load_spec(None, [("dataset.train", [source]), ("model", {"TPS": True}), "model.hidden_size=8"])
    assert spec.dataset.train[0].path == "a=b [c]"
    assert (spec.model.TPS, spec.model.hidden_size) == (True, 8)


def test_references_reach_the_file_the_overrides_and_the_defaults(write: Write) -> None:
    file = write(
        "train: {results_dir: '${results_dir}/a', seed: '${train.num_epochs}'}\nevaluate: {test: '${dataset.val}'}\n"
    )
    spec = load_spec(file, ["dataset.val=[x, y]"])
    assert spec.train.results_dir == "results/a"
    assert spec.train.seed == 10
    assert [source.path for source in spec.evaluate.test] == ["x", "y"]


def test_a_rate_that_the_optimiser_chooses_cannot_be_referred_to() -> None:
    overrides = ["train.optim.name=adamw", "train.optim.min_lr=${train.optim.lr}"]
    with pytest.raises(ConfigError, match=r"train\.optim\.min_lr"):
        load_spec(None, overrides)
    assert load_spec(None, ["train.optim.lr=0.01", *overrides]).train.optim.min_lr == 0.01


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("results_dir: ${oc.env:HOME}", "spec.yaml:1: results_dir: '${oc.env:HOME}' is refused: a spec is plain data"),
        ("results_dir: ${model.${model_name}}", "spec.yaml:1: results_dir: '${model.${model_name}}' is refused"),
        (
            "model_name: ${results_dir}\nresults_dir: ${model_name}/x",
            "spec.yaml:1: model_name: the references go round in a circle",
        ),
        (
            "results_dir: ${nothing.here}",
            "spec.yaml:1: results_dir: it refers to 'nothing.here', and there is no such key",
        ),
        (
            "results_dir: ${model}/x",
            "spec.yaml:1: results_dir: it refers to 'model', which is neither text nor a number",
        ),
        (
            "export: {results_dir: '${evaluate.checkpoint}/x'}",
            "spec.yaml:1: export.results_dir: it refers to 'evaluate.checkpoint', which is not given",
        ),
    ],
)
def test_a_reference_that_is_not_plain_or_leads_nowhere_is_refused(write: Write, written: str, said: str) -> None:
    assert said in refusal(write(written))


def test_references_that_double_cannot_fill_the_memory(write: Write) -> None:
    lines = ["a0: xxxxxxxxxxxxxxxx"] + [f"a{i}: ${{wandb.a{i - 1}}}${{wandb.a{i - 1}}}" for i in range(1, 40)]
    said = refusal(write("wandb:\n  " + "\n  ".join(lines)))
    assert "expand to more than a million characters" in said


SOURCE = "{path, gt_file, format, inside_only, weight}"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("train:\n  num_epoch: 3\n", "spec.yaml:2: unknown key 'train.num_epoch' (did you mean 'train.num_epochs'?)"),
        ("lr: 3\n", "spec.yaml:1: unknown key 'lr' (did you mean 'train.optim.lr'?)"),
        (
            "dataset:\n  train:\n  - {path: a,\n     weigth: 2}\n",
            "spec.yaml:4: unknown key 'dataset.train[0].weigth' (did you mean 'dataset.train[0].weight'?)",
        ),
        ("export: {opset_kind: 1}", "known here: checkpoint, gpu_id, onnx_file, probabilities, profile,"),
        ("train: {qqqq: 1}", "spec.yaml:1: unknown key 'train.qqqq'; `inkmill spec` lists the known keys"),
        ("train:\n\n  num_epochs: ten\n", "spec.yaml:3: train.num_epochs must be a whole number >= 1 and <= 1,000,000"),
        ("train: {num_epochs: 0}", "spec.yaml:1: train.num_epochs must be a whole number >= 1 and <= 1,000,000, not 0"),
        ("dataset: {val_fraction: 1.5}", "spec.yaml:1: dataset.val_fraction must be a number > 0 and < 1, not 1.5"),
        ("model: {TPS: 7}", "spec.yaml:1: model.TPS must be true or false, not 7"),
        ("model: {prediction: LSTM}", "spec.yaml:1: model.prediction must be one of CTC, Attn, Slots, not 'LSTM'"),
        ("model: {num_fiducial: 3}", "spec.yaml:1: model.num_fiducial must be even and at least 4"),
        ("results_dir: 2024", "spec.yaml:1: results_dir must be text, not 2024"),
        ("results_dir: null", "spec.yaml:1: results_dir must be text, not null"),
        ("train: {gpu_ids: [a]}", "spec.yaml:1: train.gpu_ids must be a list of whole numbers, not ['a']"),
        ("train: 3", "spec.yaml:1: train must be a section, not 3"),
        ("dataset: {train: 3}", f"spec.yaml:1: dataset.train must be a list of paths or of {SOURCE}, not 3"),
        ("dataset: {train: [{gt_file: x}]}", "spec.yaml:1: dataset.train[0].path is missing: expected text"),
        ("train: {num_epochs: '??'}", "spec.yaml:1: train.num_epochs stands as '??', which means"),
        ("model: {TPS: true, input_resize: height}", "model: TPS needs a fixed input width"),
        ("train: {pretrained_character_list: a.txt}", "train: pretrained_character_list says which"),
        ("train: {a: 1, num_epochs: x}", "(and 1 more problem)"),
        ("- a\n- b\n", "spec.yaml: expected keys such as 'train:' and 'dataset:', not list data"),
        ("a: 1\na: 2\n", "spec.yaml:2: the key 'a' is given twice"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_file_line_key_and_what_was_expected(
    write: Write, written: str, said: str
) -> None:
    assert said in refusal(write(written))


def test_an_override_that_is_wrong_is_named_by_its_key(write: Write) -> None:
    file = write("train: {num_epochs: 3}\n")
    assert refusal(file, "train.num_epochs=x").endswith("must be a whole number >= 1 and <= 1,000,000, not 'x'")
    assert refusal(None, "train.optim.lr=[1").startswith("train.optim.lr=[1: what follows the '=' is not valid YAML")
    assert refusal(None, "x").startswith("'x' is not an override; expected KEY=VALUE")


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.yaml") == f"cannot read the spec: {tmp_path / 'no.yaml'}: no such file or folder"
    assert "it is a folder; a file was expected" in refusal(tmp_path)
    (tmp_path / "big.yaml").write_bytes(b"#" * (2 << 20))
    assert "larger than 1,048,576 bytes" in refusal(tmp_path / "big.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    assert "latin.yaml:2: not UTF-8" in refusal(tmp_path / "latin.yaml")


def test_a_name_that_is_neither_file_nor_preset_is_told_the_presets() -> None:
    assert refusal("captchas") == (
        "there is neither a spec file nor a preset 'captchas' (did you mean 'captcha'?); presets: captcha, detection, "
        "line, scene, tao"
    )


def test_a_folder_named_like_a_preset_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "captcha").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_spec("captcha").model.backbone == "Tiny"


def test_arguments_are_paths_or_overrides() -> None:
    assert split_arguments(["a.png", "train.seed=1", "./x=1.png", "https://x/?a=b", "seed="]) == (
        ["a.png", "./x=1.png", "https://x/?a=b"],
        ["train.seed=1", "seed="],
    )


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "dataset.batch_size=1000000000",
            "dataset.batch_size must be a whole number >= 1 and <= 65,536, not 1000000000",
        ),
        ("dataset.workers=100000", "dataset.workers must be a whole number >= 0 and <= 1024, not 100000"),
        ("evaluate.workers=100000", "evaluate.workers must be a whole number >= 0 and <= 1024, not 100000"),
        (f"train.num_epochs={10**29}", "train.num_epochs must be a whole number >= 1 and <= 1,000,000, not 1000"),
        (f"train.seed={10**29}", "train.seed must be a whole number >= -1 and < 9,223,372,036,854,775,808, not 1000"),
    ],
)
def test_numbers_beyond_any_machine_are_one_sentence(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_spec(None, [override])
    assert said in str(error.value)
