from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import pytest
import torch

import inkmill
from inkmill.config.model import ModelSpec
from inkmill.config.spec import Spec
from inkmill.data.pipeline.decode import decode
from inkmill.data.pipeline.resize import Resize
from inkmill.deploy.export.paddle import PaddleInput
from inkmill.deploy.export.run import export
from inkmill.errors import ConfigError
from inkmill.modelfile.torch_file import save_model
from inkmill.runtime.torch_reader import TorchReader

from .test_run import figures, untrained


def as_rapidocr(images: Sequence[np.ndarray], height: int = 48) -> np.ndarray:
    """Return float32 (B, 3, height, W) of BGR crops as RapidOCR 3.10 gives a batch of them to its recogniser.

    W is that of the widest, and at least 320; the widest one loses what is left of a column.
    """
    widest = int(height * max(320 / 48, *(image.shape[1] / image.shape[0] for image in images)))
    batch = np.zeros((len(images), 3, height, widest), np.float32)
    for place, image in zip(batch, images, strict=True):
        wide = min(int(np.ceil(height * image.shape[1] / image.shape[0])), widest)
        resized = cv2.resize(image, (wide, height)).astype(np.float32).transpose(2, 0, 1)
        place[:, :, :wide] = (resized / 255 - 0.5) / 0.5
    return batch


@pytest.fixture(scope="module")
def crops(captchas: Path) -> list[np.ndarray]:
    """Real crops, BGR, of many widths and heights."""
    files = sorted((captchas / "images").iterdir())[:24]
    whole = [decode(file.read_bytes(), 3)[..., ::-1] for file in files]
    cut = [image[:, : 240 - 9 * number] for number, image in enumerate(whole)]
    return [cv2.resize(image, None, fx=scale, fy=scale) for image, scale in zip(cut, [1, 0.5, 0.3] * 8, strict=True)]


def texts(session: onnxruntime.InferenceSession, batch: np.ndarray) -> list[str]:
    """Return what RapidOCR makes of the probabilities: classes that repeat once, class 0 not, characters by line."""
    characters = ["blank", *session.get_modelmeta().custom_metadata_map["character"].splitlines(), " "]
    best = session.run(None, {"x": batch})[0].argmax(axis=2)
    return [
        "".join(characters[one] for one, before in zip(row, [0, *row[:-1]], strict=True) if one and one != before)
        for row in best
    ]


@pytest.mark.parametrize(("resize", "width"), [("height", 320), ("pad", 320), ("stretch", 100)])
@pytest.mark.parametrize("channels", [1, 3])
def test_their_pictures_become_ours(resize: str, width: int, channels: int, crops: list[np.ndarray]) -> None:
    bgr = crops[1]
    rows = bgr.shape[0]
    rgb = np.ascontiguousarray(bgr[..., ::-1])
    ours = rgb if channels == 3 else cv2.cvtColor(bgr, cv2.COLOR_BGR2GRAY)[..., None]
    resized, valid = Resize(height=rows, width=width, channels=channels, mode=resize).apply(ours)  # type: ignore[arg-type]
    spec = ModelSpec(input_height=rows, input_width=width, input_channel=channels, input_resize=resize)
    pictures, widths = PaddleInput(spec)(torch.from_numpy(as_rapidocr([bgr], rows)))
    made = pictures[0].permute(1, 2, 0).numpy() * 127.5 + 127.5
    assert made.shape == (rows, width, channels)
    assert widths.tolist() == [resized.shape[1]]
    assert np.abs(made[:, : resized.shape[1]] - resized).max() < (1.5 if resize != "stretch" else 40)
    assert np.abs(made[:, : resized.shape[1]] - resized).mean() < (0.5 if resize != "stretch" else 4)
    assert (made[:, valid:] == made[:, valid - 1 : valid]).all()


def test_their_height_of_48_becomes_the_readers(crops: list[np.ndarray]) -> None:
    spec = ModelSpec(input_height=32, input_width=160, input_channel=3, input_resize="height")
    pictures, widths = PaddleInput(spec)(torch.from_numpy(as_rapidocr(crops)))
    for picture, width, bgr in zip(pictures, widths.tolist(), crops, strict=True):
        resized, valid = Resize(height=32, width=160, channels=3, mode="height").apply(
            np.ascontiguousarray(bgr[..., ::-1])
        )
        made = picture.permute(1, 2, 0).numpy()[:, :valid] * 127.5 + 127.5
        assert abs(width - resized.shape[1]) <= 32
        if made.shape[1] == valid:
            apart = np.abs(
                made - resized[:, :valid]
            ).mean()  # not 0: resized twice, the first time over half the pixels
            assert apart < np.abs(made[:, 1:] - resized[:, : valid - 1]).mean()


def reader(folder: Path, resize: str, crops: list[np.ndarray]) -> Spec:
    """Return the export's spec of a reader with fresh weights that reads different crops as different texts."""
    size = [f"model.input_resize={resize}", "model.input_height=48", "model.input_width=160", "export.profile=paddle"]
    spec = untrained(folder, "model.sequence=none", *size)
    torch_reader = TorchReader.load(folder / "reader.safetensors", "cpu")
    classes, seen = torch_reader.model.head.get_submodule("classes"), []
    hook = classes.register_forward_hook(lambda part, given, scores: seen.append(scores.detach().flatten(0, -2)))
    torch_reader.read([crop[..., ::-1] for crop in crops])
    hook.remove()
    spread, middle = torch.std_mean(torch.cat(seen), dim=0)
    with torch.no_grad():
        classes.get_parameter("bias").sub_(middle).mul_(3 / spread)
        classes.get_parameter("weight").mul_(3 / spread[:, None])
    save_model(folder / "reader.safetensors", torch_reader.model.state_dict(), torch_reader.header)
    return spec


@pytest.fixture(scope="module", params=["height", "pad", "stretch"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, crops: list[np.ndarray]
) -> tuple[str, Path, list[str]]:
    """A fit, a file of this profile, and what our own reader reads in the crops."""
    folder = tmp_path_factory.mktemp(request.param)
    path = export(reader(folder, request.param, crops), crops=24)
    assert figures(folder)["profile"] == "paddle"
    assert figures(folder)["string_parity"] == 1.0
    ours = inkmill.load(folder / "reader.safetensors", "cpu").read([crop[..., ::-1] for crop in crops])
    return request.param, path, [one.text for one in ours]


@pytest.mark.slow
def test_a_batch_of_theirs_reads_as_our_reader_does(made: tuple[str, Path, list[str]], crops: list[np.ndarray]) -> None:
    resize, path, ours = made
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    alone = [texts(session, as_rapidocr([crop]))[0] for crop in crops]
    together = [text for start in range(0, 24, 6) for text in texts(session, as_rapidocr(crops[start : start + 6]))]
    assert together == alone
    assert len(set(ours)) > 12
    # Tall ones our reader also reads turned, which RapidOCR does before it asks its recogniser.
    wide = [crop.shape[0] <= 1.5 * crop.shape[1] for crop in crops]
    same = np.mean([text == our for text, our, is_wide in zip(alone, ours, wide, strict=True) if is_wide])
    assert resize == "stretch" or same >= 0.95  # fresh weights turn with every pixel, and stretching resizes twice


@pytest.mark.slow
def test_our_reader_reads_the_file_too(made: tuple[str, Path, list[str]], crops: list[np.ndarray]) -> None:
    _, path, ours = made
    theirs = inkmill.load(path).read([crop[..., ::-1] for crop in crops])
    assert [one.text for one in theirs] == ours


@pytest.mark.slow
def test_the_classes_are_theirs(made: tuple[str, Path, list[str]], crops: list[np.ndarray]) -> None:
    session = onnxruntime.InferenceSession(str(made[1]), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": as_rapidocr(crops)})
    assert session.get_modelmeta().custom_metadata_map["character"].splitlines() == list("0123456789")
    assert found.shape == (24, 40, 11)
    np.testing.assert_allclose(found.sum(axis=2), 1, atol=1e-5)


def test_other_heads_than_ctc_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="readers with prediction=CTC, which is what RapidOCR decodes, not predict"):
        export(untrained(tmp_path, "model.prediction=Attn", "export.profile=paddle"))


@pytest.mark.slow
def test_rapidocr_reads_it(made: tuple[str, Path, list[str]], crops: list[np.ndarray]) -> None:
    rapidocr = pytest.importorskip("rapidocr", reason="RapidOCR is not installed (pip install rapidocr)")
    engine = rapidocr.RapidOCR(params={"Rec.model_path": str(made[1]), "Global.use_preprocess_img": False})
    found = [engine(crop, use_det=False, use_cls=False, use_rec=True).txts[0] for crop in crops]
    session = onnxruntime.InferenceSession(str(made[1]), providers=["CPUExecutionProvider"])
    assert found == [texts(session, as_rapidocr([crop]))[0] for crop in crops]
