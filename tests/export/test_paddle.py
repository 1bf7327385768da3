from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import torch

import inkmill
from inkmill.config.model import ModelSpec
from inkmill.data.decode import decode
from inkmill.data.fit import Fit
from inkmill.export.onnx import export
from inkmill.export.paddle import PaddleInput

from .test_onnx import figures, untrained


def as_paddle(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return float32 (3, height, width) of a BGR image as PaddleOCR's recogniser is given it."""
    wide = int(np.ceil(height * image.shape[1] / image.shape[0]))
    resized = cv2.resize(image, (wide, height)).astype(np.float32).transpose(2, 0, 1)
    padded = np.zeros((3, height, width), np.float32)
    padded[:, :, :wide] = (resized / 255 - 0.5) / 0.5
    return padded


def test_their_pictures_become_ours(captchas: Path) -> None:
    file = sorted((captchas / "images").iterdir())[0].read_bytes()
    bgr = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)[:32, :70]
    for channels in (1, 3):
        rgb = np.ascontiguousarray(bgr[..., ::-1])
        ours = rgb if channels == 3 else cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)[..., None]
        fitted, valid = Fit(height=bgr.shape[0], width=320, channels=channels, mode="height").apply(ours)
        spec = ModelSpec(input_height=bgr.shape[0], input_width=320, input_channel=channels, input_fit="height")
        given = torch.from_numpy(as_paddle(bgr, bgr.shape[0], 310))[None]
        made = PaddleInput(spec)(given)[0].permute(1, 2, 0).numpy() * 127.5 + 127.5
        assert made.shape == (bgr.shape[0], 320, channels)
        assert np.abs(made[:, : fitted.shape[1]] - fitted).max() < 1.5
        assert (made[:, valid:] == made[:, valid - 1 : valid]).all()


def test_a_paddle_file_says_what_torch_says(tmp_path: Path, captchas: Path) -> None:
    settings = ["model.sequence=none", "model.input_fit=height", "model.input_height=48", "model.input_width=320"]
    path = export(untrained(tmp_path, *settings, "export.profile=paddle", f"dataset.val={captchas}"))
    assert figures(tmp_path)["string_parity"] == 1.0
    assert figures(tmp_path)["profile"] == "paddle"
    files = sorted((captchas / "images").iterdir())[:5]
    ours = inkmill.load(tmp_path / "reader.safetensors", device="cpu").read(files)
    assert [one.text for one in inkmill.load(path).read(files)] == [one.text for one in ours]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    images = [decode(file.read_bytes(), 3)[..., ::-1] for file in files]
    (found,) = session.run(None, {"x": np.stack([as_paddle(image, 48, 320) for image in images])})
    characters = session.get_modelmeta().custom_metadata_map["character"].splitlines()
    assert found.shape == (5, 80, 1 + len(characters))
    np.testing.assert_allclose(found.sum(axis=2), 1, atol=1e-5)
