from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
import torch

import inkmill
from inkmill.cli.main import run
from inkmill.config.load import load_spec
from inkmill.config.model import ModelSpec
from inkmill.config.spec import Spec
from inkmill.data.jobs.sample import SampleSet
from inkmill.deploy.quantize.layers import find_layers, load_graph, measure_ranges
from inkmill.deploy.quantize.run import quantize
from inkmill.deploy.quantize.search import Chosen, rank, search
from inkmill.errors import ConfigError, InkmillError, ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.torch_file import save_model
from inkmill.runtime.onnx import OnnxReader
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.decoder import Reading
from inkmill.tasks.recognition.task import Recognition

from ..conftest import TrainedReader

pytestmark = pytest.mark.slow  # the reader that is quantised must read


@pytest.fixture(scope="module")
def trained(trained_reader: TrainedReader, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with reader.safetensors, which reads some captchas, and reader.onnx; and the labels, few.tsv."""
    folder = tmp_path_factory.mktemp("quantize")
    (folder / "reader.safetensors").write_bytes(trained_reader.model.read_bytes())
    (folder / "few.tsv").symlink_to(trained_reader.labels)
    quantize(spec_for(folder, "reader.safetensors", "quantize.calibration_images=64", "quantize.max_drop=1"))
    (folder / "reader.onnx").write_bytes((folder / "quantize" / "float.onnx").read_bytes())
    return folder


def spec_for(folder: Path, model: str, *overrides: str) -> Spec:
    data = [f"dataset.train={(folder / 'few.tsv').resolve()}", f"results_dir={folder}"]
    return load_spec(None, [f"quantize.model_path={folder / model}", *data, *overrides])


def nodes(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_int8_loses_no_more_words_than_the_bound(trained: Path) -> None:
    bound = "quantize.max_drop=0.02"
    path = quantize(spec_for(trained, "reader.onnx", f"quantize.quantized_file={trained}/bounded.onnx", bound))
    report = json.loads((trained / "quantize" / "metrics.json").read_text("utf-8"))
    before, after = report["before"], report["after"]
    assert before["scores"]["word_accuracy"] > 0
    assert after["scores"]["word_accuracy"] >= before["scores"]["word_accuracy"] - 0.02
    assert (report["checked"]["count"], report["calibration"]["count"]) == (100, 512)
    assert nodes(path)["QuantizeLinear"] >= len(report["layers"]["int8"]) > 0
    assert after["images_per_second"]["batch_32"]["median"] > 0
    card = json.loads(path.with_name("bounded.onnx.card.json").read_text("utf-8"))
    assert [one["verb"] for one in card["made"]] == ["train", "export", "quantize"]
    assert not card["metrics"]  # they were the float reader's
    assert list(card["speeds"].values()) == [round(one["median"], 1) for one in after["images_per_second"].values()]
    assert [name.partition(", ")[2].partition(", ")[0] for name in card["speeds"]] == ["batch 1", "batch 32"]
    assert inkmill.load(path, "cpu").header.provenance["speeds"] == card["speeds"]
    assert (trained / "quantize" / "export" / "metrics.json").exists()
    assert not (trained / "export").exists()  # what an export of the user's own would have left


def test_a_reader_of_several_sizes_is_quantised_on_all_of_them(trained: Path, tmp_path: Path) -> None:
    spec = ModelSpec(backbone="Tiny", sequence="none", input_width=128, input_resize="aspect")
    task = Recognition(spec, Charset(tuple("0123456789")), 6)
    torch.manual_seed(0)
    save_model(tmp_path / "reader.safetensors", task.build().state_dict(), ModelHeader.of(task))
    (tmp_path / "few.tsv").symlink_to((trained / "few.tsv").resolve())
    rows = (trained / "few.tsv").resolve().read_text().splitlines()
    for number, row in enumerate(rows[:30:3]):  # square ones among them
        image = cv2.imread(str((trained / "few.tsv").resolve().parent / row.split("\t")[0]))
        assert cv2.imwrite(str(tmp_path / f"{number}.png"), image[:, : image.shape[0]])
    overrides = ["quantize.max_drop=1", f"evaluate.test={tmp_path}/square.tsv"]
    (tmp_path / "square.tsv").write_text("".join(f"{number}.png\t1\n" for number in range(len(rows[:30:3]))))
    path = quantize(spec_for(tmp_path, "reader.safetensors", *overrides))
    reader = OnnxReader(path, "cpu")
    for height, width in reader.resize.sizes():
        assert len(reader.read(np.zeros((height, width, 1), np.uint8))) == 1
    assert nodes(path)["QuantizeLinear"] > 0


@pytest.mark.usefixtures("exact_int8")
def test_int8_reads_most_captchas_as_float_does(trained: Path, captchas: Path) -> None:
    keys = [f"quantize.quantized_file={trained}/again.onnx", "quantize.max_drop=1"]
    path = quantize(spec_for(trained, "reader.onnx", *keys))
    report = json.loads((trained / "quantize" / "metrics.json").read_text("utf-8"))
    assert report["strings_equal"] > 0.6
    assert len(report["layers"]["int8"]) > 8
    assert report["after"]["bytes"] == path.stat().st_size < 0.5 * report["before"]["bytes"]
    images = sorted((captchas / "images").iterdir())[:50]
    floats, ints = (inkmill.load(one, "cpu").read(images) for one in (trained / "reader.onnx", path))
    assert sum(a.text == b.text for a, b in zip(floats, ints, strict=True)) > 25


def test_pictures_without_labels_are_compared_by_their_strings(trained: Path) -> None:
    folder = f"dataset.quant_calibration_dataset.images_dir={(trained / 'few.tsv').resolve().parent / 'images'}"
    spec = spec_for(trained, "reader.onnx", folder, "dataset.train=[]", f"quantize.quantized_file={trained}/some.onnx")
    spec.quantize.calibration_images, spec.quantize.max_drop = 100, 1.0
    quantize(spec)
    report = json.loads((trained / "quantize" / "metrics.json").read_text("utf-8"))
    assert report["before"]["scores"] == {}
    assert report["drop"] == pytest.approx(1 - report["strings_equal"])
    assert report["checked"] == report["calibration"]
    assert report["checked"]["count"] == 100


def test_the_most_sensitive_layers_stay_in_float_until_the_bound_holds(trained: Path, captchas: Path) -> None:
    reader = OnnxReader(trained / "reader.onnx", "cpu")
    model = load_graph((trained / "reader.onnx").read_bytes(), "reader.onnx", ("output_id", "output_prob"))
    layers = find_layers(model)
    pictures = [cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) for path in sorted((captchas / "images").iterdir())[:8]]
    images = np.stack([reader.resize.apply(picture[..., None])[0] for picture in pictures])
    ranges = measure_ranges(model, layers, SampleSet("", list(images)))
    in_int8 = 0

    def open_reader(graph: Any) -> OnnxReader:
        nonlocal in_int8
        in_int8 = sum(
            tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) > 1 for tensor in graph.graph.initializer
        )
        graph = deepcopy(graph)
        graph.metadata_props.add(key="inkmill", value=reader.header.to_json())
        (trained / "tried.onnx").write_bytes(graph.SerializeToString())
        return OnnxReader(trained / "tried.onnx", "cpu")

    def found(most: int) -> Chosen:
        """The search where more than `most` layers in int8 cost everything."""
        return search(
            model,
            layers,
            ranges,
            open_reader=open_reader,
            drop_of=lambda _: float(in_int8 > most),
            images=images,
            max_drop=0.01,
        )

    chosen = found(len(layers) - 3)
    assert [one["in_float"] for one in chosen.tried] == [0, 1, 2, 4]
    assert chosen.in_float == rank(model, layers, ranges, open_reader, images)[:4]
    assert len(found(1).in_float) == len(layers) - 1
    with pytest.raises(InkmillError, match=r"more than quantize\.max_drop=0\.01"):
        found(0)


def test_skipped_layers_keep_their_weights_in_float(trained: Path) -> None:
    spec = spec_for(trained, "reader.onnx", "quantize.skip_names=[backbone.convolutions.0.*, Linear]")
    spec.quantize.max_drop = 1.0
    path = quantize(spec)
    assert path == trained / "reader_int8.onnx"
    report = json.loads((trained / "quantize" / "metrics.json").read_text("utf-8"))
    assert "backbone.convolutions.0.0" in report["layers"]["float"]
    assert all(name.startswith("backbone.convolutions") or "position" in name for name in report["layers"]["int8"])
    spec.quantize.skip_names = ["backbone.*"]  # linear layers too, whose weights the exporter lays out again
    quantize(spec)
    report = json.loads((trained / "quantize" / "metrics.json").read_text("utf-8"))
    assert report["layers"]["int8"]
    assert all(name.startswith("head") for name in report["layers"]["int8"])
    spec.quantize.skip_names = ["backbone.nothing"]
    with pytest.raises(ConfigError, match=r"no layer is called 'backbone\.nothing'"):
        quantize(spec)
    spec.quantize.skip_names = ["*"]
    with pytest.raises(ConfigError, match="no layer is left"):
        quantize(spec)


def test_an_encrypted_reader_stays_encrypted(trained: Path) -> None:
    (trained / "secret").mkdir(exist_ok=True)
    spec = spec_for(trained, "reader.safetensors", f"results_dir={trained}/secret", "encryption_key=sesame")
    spec.quantize.quantized_file, spec.quantize.calibration_images = f"{trained}/secret/int8.onnx", 32
    spec.quantize.max_drop = 1.0
    path = quantize(spec)
    for written in (path, trained / "secret" / "quantize" / "float.onnx"):
        assert written.read_bytes().startswith(b"inkmillE")
    with pytest.raises(ModelFileError, match="encrypted"):
        inkmill.load(path)
    assert inkmill.load(path, "cpu", encryption_key="sesame").header.task_header["charset"] == list("0123456789")


def test_mistakes_are_one_sentence(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quantize"]) == 2
    assert "quantize needs quantize.model_path" in capsys.readouterr().err
    reader = f"{trained}/reader.onnx"
    spec = spec_for(trained, "reader.onnx", "dataset.train=[]")
    with pytest.raises(ConfigError, match=r"give dataset\.train=PATH"):
        quantize(spec)
    for name, message in {reader: "is the model itself", f"{trained}/small.pth": r"ends in \.onnx"}.items():
        spec.quantize.quantized_file = name
        with pytest.raises(ConfigError, match=message):
            quantize(spec)
    with pytest.raises(ConfigError, match="is quantised already"):
        quantize(spec_for(trained, "reader_int8.onnx"))  # of the fixture


def test_the_verb_prints_the_table(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = [f"dataset.train={(trained / 'few.tsv').resolve()}", f"results_dir={trained}", "quantize.max_drop=1"]
    assert run(["quantize", f"{trained}/reader.onnx", f"{trained}/shown.onnx", *data]) == 0
    shown = capsys.readouterr().out
    assert "word accuracy" in shown
    assert "layers in int8" in shown
    assert f"{trained}/shown.onnx" in shown.replace("\n", "")
    assert run(["quantize", f"{trained}/reader.onnx", "a.onnx", "b.onnx", *data]) == 2


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("quantize.backend=torchao", "expected onnxruntime or modelopt.onnx"),
        ("quantize.mode=weight_only_ptq", "expected static_ptq"),
        ("quantize.algorithm=entropy", "expected minmax or max"),
        ("quantize.layers=[{module_name: Linear, weights: {dtype: fp8_e4m3fn}}]", "expected int8, or native"),
        ("quantize.layers=[{module_name: Linear, activations: {dtype: native}}]", "the same of both"),
    ],
)
def test_what_tao_has_and_this_has_not_is_refused(setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_spec(None, [setting])


READS = Recognition(ModelSpec(), Charset(tuple("abxy")), 4)


def readings(*texts: str) -> list[Reading]:
    return [Reading(text, 0.5) for text in texts]


@pytest.mark.parametrize(("lost", "count"), [(1, 100), (1, 50), (1, 20), (3, 300), (7, 10)])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_loss_at_the_bound_is_within_it(lost: int, count: int, labelled: bool) -> None:
    truths = ["a"] * count
    right, wrong = readings(*truths), readings(*["b"] * lost, *["a"] * (count - lost))
    assert READS.lost(right, wrong, truths if labelled else None) == lost / count
    assert READS.lost(wrong, right, truths) == -lost / count  # int8 may read better


def test_only_what_the_labels_say_counts_where_there_are_labels() -> None:
    assert READS.lost(readings("a", "x"), readings("a", "y"), ["a", "b"]) == 0
    assert READS.lost(readings("a", "x"), readings("a", "y"), None) == 0.5
