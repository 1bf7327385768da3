from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from inkmill.cli.main import run
from inkmill.config.load import load_spec
from inkmill.crypt import find_key, is_encrypted, read_plain
from inkmill.deploy.export.parity import Parity
from inkmill.deploy.tensorrt import build
from inkmill.deploy.tensorrt.build import build_engine
from inkmill.deploy.tensorrt.library import Library
from inkmill.errors import InkmillError
from inkmill.modelfile.header import ModelHeader
from inkmill.runtime.onnx import OnnxReader

TRT = "gen_trt_engine.tensorrt"


def no_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inkmill.deploy.tensorrt.library._PACKAGES", ("no_such_tensorrt",))


@pytest.mark.slow
def test_without_tensorrt_the_verb_says_one_sentence_and_writes_no_engine(
    fresh: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_tensorrt(monkeypatch)
    trained = shutil.copy(fresh().with_suffix(".safetensors"), tmp_path)
    assert run(["gen_trt_engine", str(trained), f"results_dir={tmp_path}/results"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "inkmill: engine needs the package 'tensorrt', which is not installed: pip install 'inkmill[tensorrt-cuda13]'\n"
    )
    assert not list(tmp_path.glob("*.engine*"))
    assert OnnxReader(tmp_path / "results" / "engine" / "reader.onnx", "cpu").header.task_header["charset"] == list(
        "0123456789"
    )
    assert "FAILURE" in (tmp_path / "results" / "engine" / "status.json").read_text("utf-8").splitlines()[-1]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([f"{TRT}.min_batch_size=64"], "expected min <= opt <= max"),
        ([f"{TRT}.layers_precision=[head.classes:fp32]"], "the key is for FP16 or INT8 of fp32 files"),
        ([f"{TRT}.data_type=FP16", f"{TRT}.layers_precision=[hat:fp32]"], "no layer is called 'hat'"),
        (["gen_trt_engine.trt_engine={reader}"], "is the model itself"),
        (["gen_trt_engine.onnx_file=missing.onnx"], "no such model file"),
        ([f"{TRT}.data_type=INT4"], "data_type"),
        ([f"{TRT}.workspace_size=-1"], "workspace_size"),
    ],
)
def test_a_wrong_key_is_said_before_tensorrt_is_missed(
    keys: list[str],
    said: str,
    fresh: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    no_tensorrt(monkeypatch)
    reader = str(fresh())
    given = [key.format(reader=reader) for key in keys]
    assert run(["engine", f"gen_trt_engine.onnx_file={reader}", f"results_dir={tmp_path}", *given]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["FP32", "FP16", "INT8"])
def test_an_engine_lies_beside_all_that_reading_with_it_needs(
    kind: str, library: Library, fresh: Callable[..., Path], few: Path, tmp_path: Path
) -> None:
    path, reader = tmp_path / "reader.engine", fresh()
    asked = [f"gen_trt_engine.onnx_file={reader}", f"gen_trt_engine.trt_engine={path}", f"{TRT}.data_type={kind}"]
    pictures = [f"dataset.train={few}", f"{TRT}.calibration.cal_cache_file={tmp_path / 'ranges.json'}"]
    spec = load_spec(None, [*asked, *pictures, f"results_dir={tmp_path}", f"{TRT}.workspace_size=256"])
    spec.quantize.max_drop = 0.3
    assert build_engine(spec) == path
    figures = json.loads((tmp_path / "engine" / "metrics.json").read_text("utf-8"))
    assert figures["bytes"] == path.stat().st_size > 100_000
    assert (figures["precision"], figures["workspace_mib"]) == (kind.lower(), 256)
    assert figures["library"].startswith(library.name)
    if kind != "FP32":
        assert figures["graph"]["crops"] == 100
        assert figures["graph"]["string_parity"] >= (0.999 if kind == "FP16" else 0.7)
        assert 0 < figures["graph"]["max_probability_difference"] < (0.1 if kind == "FP16" else 0.9)
        compiled = onnx.load(tmp_path / "engine" / f"{kind.lower()}.onnx")
        onnx.checker.check_model(compiled)
    assert (tmp_path / "ranges.json").exists() == (kind == "INT8")
    told = json.loads((tmp_path / "reader.engine.card.json").read_text("utf-8"))
    read = ModelHeader.model_validate(
        {name: told[name] for name in ("model", "charset", "normalise", "max_label_length")}
    )
    original = OnnxReader(reader, "cpu").header
    assert read.model_copy(update={"provenance": original.provenance}) == original
    assert [one["verb"] for one in told["made"]] == ["export", "engine"]
    assert not told["metrics"]
    assert (tmp_path / "reader.engine.characters.txt").read_text("utf-8").split() == original.charset


def test_with_a_key_nothing_plain_is_written(
    library: Library, fresh: Callable[..., Path], few: Path, tmp_path: Path
) -> None:
    from inkmill.crypt import Key

    reader = tmp_path / "reader.onnx"
    reader.write_bytes(Key("secret").encrypt(fresh().read_bytes()))
    asked = [str(reader), f"{TRT}.data_type=FP16", "encryption_key=secret", f"dataset.train={few}"]
    assert run(["engine", *asked, f"results_dir={tmp_path}"]) == 0
    for path in (tmp_path / "reader.engine", tmp_path / "engine" / "fp16.onnx"):
        assert is_encrypted(path)
        assert len(read_plain(path, find_key("secret"))) > 100_000
    assert b"secret" not in (tmp_path / "engine" / "experiment.yaml").read_bytes()


def test_a_graph_that_reads_otherwise_becomes_no_engine(
    fresh: Callable[..., Path], few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "load_tensorrt", lambda: Library(None, "TensorRT", "10", True))
    monkeypatch.setattr(build, "compare", lambda ours, theirs, pictures: Parity(crops=300, equal=200))
    for kind in ("FP16", "INT8"):
        asked = [f"gen_trt_engine.onnx_file={fresh()}", f"{TRT}.data_type={kind}", f"dataset.train={few}"]
        with pytest.raises(InkmillError, match=r"200 of 300 texts stay the same.*layers_precision"):
            build_engine(load_spec(None, [*asked, f"results_dir={tmp_path}", f"{TRT}.calibration.cal_batches=2"]))
        figures = json.loads((tmp_path / "engine" / "metrics.json").read_text("utf-8"))
        assert (figures["precision"], figures["graph"]["strings_equal"]) == (kind.lower(), 200)
    assert not list(tmp_path.rglob("*.engine"))
    assert not list(tmp_path.rglob("*.onnx"))
