"""A reader that has learned something, trained once for all tests of this room."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from inkmill.config.load import load_spec
from inkmill.training.run import train

LEARN = ["dataset.batch_size=16", "dataset.workers=0", "train.device=cpu", "train.optim.name=adamw"]


@dataclass(frozen=True)
class TrainedReader:
    """A reader of captchas.

    Attributes:
        model: its .safetensors file; only to be read.
        labels: the label file that it was trained on, beside the images.
        overrides: keys of the spec: model, data and how it was trained.
    """

    model: Path
    labels: Path
    overrides: list[str]


@pytest.fixture(scope="session")
def exact_int8() -> None:
    """Skip the test where the processor adds int8 products in 16 bits, which overflow (x86 before VNNI)."""
    given = {"a": np.full((16, 64), 255, np.uint8), "b": np.full((64, 16), 127, np.int8)}
    types = {"a": TensorProto.UINT8, "b": TensorProto.INT8}
    inputs = [helper.make_tensor_value_info(name, types[name], array.shape) for name, array in given.items()]
    output = helper.make_tensor_value_info("sum", TensorProto.INT32, (16, 16))
    node = helper.make_node("MatMulInteger", ["a", "b"], ["sum"])
    graph = helper.make_graph([node], "products", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    if (session.run(None, given)[0] != 64 * 255 * 127).any():
        pytest.skip("this processor adds int8 products in 16 bits, so ONNX Runtime and torch may differ")


@pytest.fixture(scope="session")
def trained_reader(writable_captchas: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedReader:
    """A Tiny reader that reads some captchas, after some seconds of training."""
    lines = (writable_captchas / "labels.tsv").read_text("utf-8").splitlines()
    labels = writable_captchas / "a_thousand.tsv"
    labels.write_text("\n".join(lines[::5][:1000]) + "\n", "utf-8")
    small = ["model.backbone=Tiny", "model.sequence=none", "model.input_width=64", "dataset.max_label_length=8"]
    keys = [*small, *LEARN, f"dataset.train={labels}"]
    learn = ["train.num_epochs=6", "train.optim.lr=3e-3", f"results_dir={tmp_path_factory.mktemp('trained')}"]
    return TrainedReader(train(load_spec(None, [*keys, *learn])).model, labels, keys)
