from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import onnx
import pytest

from inkmill.config.tasks import TensorRTSpec
from inkmill.deploy.tensorrt.graph import open_graph, shapes
from inkmill.deploy.tensorrt.library import BuildOptions, Library, _NestedProgress, compile_engine, load_tensorrt
from inkmill.errors import InkmillError, MissingExtraError


def test_without_tensorrt_the_pip_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'inkmill\[tensorrt-cuda13\]'"):
        load_tensorrt()


def test_a_tensorrt_that_is_too_old_or_broken_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = ModuleType("tensorrt")
    old.__version__ = "8.6.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    with pytest.raises(InkmillError, match=r"needs TensorRT 10 or later, and 8\.6\.1 is installed"):
        load_tensorrt()
    monkeypatch.delitem(sys.modules, "tensorrt")
    (tmp_path / "tensorrt.py").write_text("import ctypes\nctypes.CDLL('libnvinfer.so.0')\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InkmillError, match=r"tensorrt is installed and cannot be loaded \(libnvinfer"):
        load_tensorrt()


def test_nested_phases_are_one_share_that_never_falls() -> None:
    nested = _NestedProgress()
    nested.start("build", None, 2)
    nested.start("layers", "build", 4)
    assert [nested.done("layers", step) for step in range(4)] == [0.125, 0.25, 0.375, 0.5]
    assert nested.done("build", 0) == 0.5
    nested.start("layers", "build", 2)
    assert nested.done("layers", 0) == 0.75
    nested.start("layers", "build", 2)  # once more, from its beginning
    assert nested.done("layers", 0) == 0.75
    assert nested.done("build", None) == 1.0
    nested.start("strange", "strange", 0)
    assert nested.done("strange", 7) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [[], ["model.sequence=BiLSTM", "model.input_resize=height", "model.input_width=200"]],
    ids=["fixed", "free width"],
)
def test_an_engine_is_compiled_and_told_of(kind: list[str], library: Library, fresh: Callable[..., Path]) -> None:
    graph = open_graph(fresh(*kind), None)
    told: list[tuple[int, int]] = []
    said: list[str] = []
    sizes = shapes(graph, TensorRTSpec(max_batch_size=4))

    def move(done: int, total: int) -> None:
        told.append((done, total))

    content = compile_engine(library, graph.model, sizes, BuildOptions(workspace=64, verbose=True), said.append, move)
    assert len(content) > 1_000_000
    assert told == sorted(told)
    assert told[-1] == (100, 100)
    assert len(said) > 10


def test_what_is_raised_while_tensorrt_calls_back_ends_the_build_not_the_process(
    library: Library, fresh: Callable[..., Path]
) -> None:
    graph = open_graph(fresh(), None)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_engine(library, graph.model, shapes(graph, TensorRTSpec()), BuildOptions(), print, interrupt)


def test_a_graph_that_tensorrt_refuses_is_one_sentence_with_its_reason(
    library: Library, fresh: Callable[..., Path]
) -> None:
    graph = open_graph(fresh(), None)
    broken = onnx.ModelProto()
    broken.CopyFrom(graph.model)
    relu = next(node for node in broken.graph.node if node.op_type == "Relu")
    relu.op_type = "DeformConv"
    with pytest.raises(InkmillError, match=rf"cannot read this graph at DeformConv {relu.name}: .") as caught:
        compile_engine(library, broken, shapes(graph, TensorRTSpec()), BuildOptions(), lambda line: None)
    assert "\n" not in str(caught.value)


def test_the_timing_cache_is_kept_where_kernels_are_measured(
    library: Library, fresh: Callable[..., Path], tmp_path: Path
) -> None:
    graph = open_graph(fresh(), None)
    cache, said = tmp_path / "timings", list[str]()
    compile_engine(library, graph.model, shapes(graph, TensorRTSpec()), BuildOptions(timing_cache=cache), said.append)
    assert cache.exists() == library.keeps_timings
    if not library.keeps_timings:
        assert said[-1:] == [
            f"TensorRT for RTX measures no kernels when it compiles: {cache} is neither read nor written"
        ]
