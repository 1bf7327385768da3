from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.data.jobs.sample import SampleSet
from inkmill.data.pipeline.decode import decode
from inkmill.deploy.quantize.layers import find_layers, measure_ranges
from inkmill.deploy.tensorrt.graph import EngineGraph, open_graph
from inkmill.deploy.tensorrt.precision import engine_calibration, find_ranges
from inkmill.errors import ConfigError, DataError

KEY = "gen_trt_engine.tensorrt.calibration"


def spec_for(*overrides: str) -> Spec:
    return load_spec(None, [f"{KEY}.cal_batch_size=4", f"{KEY}.cal_batches=5", *overrides])


@pytest.fixture(scope="module")
def graph(fresh: Callable[..., Path]) -> EngineGraph:
    return open_graph(fresh(), None)


@pytest.fixture(scope="module")
def free(fresh: Callable[..., Path]) -> EngineGraph:
    return open_graph(fresh("model.input_resize=height", "model.input_width=200"), None)


def test_pictures_are_spread_over_the_training_set_and_fitted_as_in_reading(graph: EngineGraph, few: Path) -> None:
    pictures = engine_calibration(spec_for(f"dataset.train={few}"), graph.reader.resize)
    assert len(pictures.images) == 20
    assert {image.shape for image in pictures.images} == {(32, 64, 1)}
    names = [line.split("\t")[0] for line in few.read_text("utf-8").splitlines()]
    resize = graph.reader.resize
    every = {
        resize.apply(decode((few.parent / name).read_bytes(), 1))[0].tobytes(): place
        for place, name in enumerate(names)
    }
    places = [every[image.tobytes()] for image in pictures.images]
    assert places == sorted(places)
    assert places[0] < 60
    assert places[-1] > 900


def test_folders_come_before_the_training_set_and_what_is_damaged_is_counted(
    graph: EngineGraph, few: Path, captchas: Path, tmp_path: Path
) -> None:
    for path in sorted((captchas / "images").iterdir())[:6]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    next(tmp_path.iterdir()).write_bytes(b"no picture")
    for key in (f"{KEY}.cal_image_dir=[{tmp_path}]", f"dataset.quant_calibration_dataset.images_dir={tmp_path}"):
        pictures = engine_calibration(spec_for(f"dataset.train={few}", key), graph.reader.resize)
        assert (len(pictures.images), pictures.unreadable, pictures.origin) == (5, 1, str(tmp_path))
    missing = few.with_name("one_missing_for_engine.tsv")
    missing.write_text(few.read_text("utf-8") + "images/nope.png\t1234\n", "utf-8")
    every = engine_calibration(spec_for(f"dataset.train={missing}", f"{KEY}.cal_batches=10000"), graph.reader.resize)
    assert every.unreadable == 1
    for path in tmp_path.iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(DataError, match="none of 6 images can be decoded"):
        engine_calibration(spec_for(key), graph.reader.resize)
    with pytest.raises(
        ConfigError,
        match=r"give dataset\.train=PATH, or a folder of images .*cal_image_dir",
    ):
        engine_calibration(spec_for(), graph.reader.resize)


def test_ranges_are_those_of_all_widths(free: EngineGraph) -> None:
    random, layers = np.random.default_rng(0), find_layers(free.model)
    narrow, wide = (random.integers(0, 256, (32, width, 1), dtype=np.uint8) for width in (32, 160))
    alone = [measure_ranges(free.model, layers, SampleSet("", [image])) for image in (narrow, wide)]
    both = measure_ranges(free.model, layers, SampleSet("", [narrow, wide]))
    assert both.keys() == {name for layer in layers for name in layer.tensors}
    for name, (low, high) in both.items():
        assert low == pytest.approx(min(one[name][0] for one in alone), rel=1e-4, abs=1e-5)
        assert high == pytest.approx(max(one[name][1] for one in alone), rel=1e-4, abs=1e-5)


def test_the_cache_is_written_read_and_of_one_file_alone(
    graph: EngineGraph, free: EngineGraph, few: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "ranges.json"
    said: list[str] = []
    keys = [f"{KEY}.cal_cache_file={cache}"]
    first = find_ranges(graph, spec_for(*keys, f"dataset.train={few}"), said.append)
    told = json.loads(cache.read_text("utf-8"))
    assert (told["onnx_sha256"], told["pictures"]) == (graph.sha256, 20)
    assert find_ranges(graph, spec_for(*keys), said.append) == first  # no pictures are named: they were not needed
    with pytest.raises(ConfigError, match="needs images"):
        find_ranges(free, spec_for(*keys), said.append)
    assert json.loads(cache.read_text("utf-8")) == told
    other = find_ranges(free, spec_for(*keys, f"dataset.train={few}"), said.append)
    assert other != first
    assert json.loads(cache.read_text("utf-8"))["onnx_sha256"] == free.sha256
    assert said[:2] == [f"ranges measured on 20 images of {few.parent.name}/{few.name}", f"ranges of {cache}"]
    assert said[-2] == f"{cache} is of another ONNX file: ranges are measured again"


def _without(told: dict[str, Any]) -> None:
    told["ranges"].popitem()


def _endless(told: dict[str, Any]) -> None:
    name = next(iter(told["ranges"]))
    told["ranges"][name] = [0, float("inf")]


def _turned(told: dict[str, Any]) -> None:
    name = next(iter(told["ranges"]))
    told["ranges"][name] = [2, 1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"TRT-101600-EntropyCalibration2\ninput: 3c010a14\n", "not a calibration cache of inkmill"),
        (b"[]", "not a calibration cache of inkmill"),
        (b"[" * 100_000, "not a calibration cache of inkmill"),
        (b'{"format": "inkmill-ranges-1"}', "not a calibration cache of inkmill"),
        (_without, "damaged; remove it"),
        (_endless, "damaged; remove it"),
        (_turned, "damaged; remove it"),
    ],
)
def test_what_is_no_cache_is_refused(content: Any, said: str, graph: EngineGraph, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    if callable(content):
        ranges = {name: [-1.0, 1.0] for layer in find_layers(graph.model) for name in layer.tensors}
        told = {"format": "inkmill-ranges-1", "onnx_sha256": graph.sha256, "ranges": ranges}
        content(told)
        content = json.dumps(told).encode()
    cache.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        find_ranges(graph, spec_for(f"{KEY}.cal_cache_file={cache}"), print)
    assert cache.read_bytes() == content
