from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

from inkmill.data.jobs.sample import SampleSet
from inkmill.data.pipeline.decode import decode
from inkmill.deploy.export.parity import compare
from inkmill.runtime.torch_reader import TorchReader

from .test_run import untrained


@pytest.mark.parametrize("head", ["CTC", "Attn"])
@pytest.mark.parametrize(("gap", "is_tie"), [(4e-5, True), (0.05, False)])
def test_a_tie_is_counted_and_still_a_difference(
    head: str, gap: float, is_tie: bool, tmp_path: Path, captchas: Path
) -> None:
    untrained(tmp_path, "model.sequence=none", f"model.prediction={head}")
    ours = TorchReader.load(tmp_path / "reader.safetensors", "cpu")
    files = sorted((captchas / "images").iterdir())[:40]
    samples = SampleSet("captchas", [ours.resize.apply(decode(file.read_bytes(), 1))[0] for file in files])
    ids = np.concatenate([ours.outputs(batch)["output_id"] for batch in samples.batches(32)])
    most = int(np.bincount(ids.ravel(), minlength=13)[2:12].argmax()) + 2
    twin = most + 1 if most < 11 else most - 1
    classes = ours.model.head.get_submodule("classes")
    with torch.no_grad():
        for name in ("weight", "bias"):
            values = classes.get_parameter(name)
            values[twin] = values[most]
        classes.get_parameter("bias")[twin] -= gap
    theirs = TorchReader(deepcopy(ours.model), ours.header)
    with torch.no_grad():
        theirs.model.head.get_parameter("classes.bias")[twin] += 2 * gap
    parity = compare(ours, theirs, samples)
    assert parity.crops == 40
    assert parity.equal < 40
    assert parity.ties == (40 - parity.equal if is_tie else 0)
    assert not parity.holds("fp32")
    assert parity.as_dict()["ties"] == parity.ties
    assert len(parity.differing) == min(20, 40 - parity.equal)
