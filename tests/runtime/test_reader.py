from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from inkmill.config.model import ModelSpec
from inkmill.errors import DataError, ImageError, ModelFileError
from inkmill.modelfile.header import ModelHeader
from inkmill.runtime.reader import BaseReader
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.task import Recognition

Pixels = NDArray[np.uint8]


class Brightness(BaseReader):
    """Reads "a" from pictures that are bright on average and "b" from the others, and keeps what it was shown."""

    def __init__(self, channels: int = 3, resize: str = "stretch") -> None:
        spec = ModelSpec.model_validate(
            {"input_width": 64, "input_height": 16, "input_channel": channels, "input_resize": resize}
        )
        super().__init__(ModelHeader.of(Recognition(spec, Charset(("a", "b")), 4)))
        self.shown: list[Pixels] = []

    def outputs(self, images: Pixels, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        self.shown.append(images)
        ids = np.where(images.mean(axis=(1, 2, 3)) > 127, 1, 2).astype(np.int32)[:, None]
        return {"output_id": ids, "output_prob": np.full(ids.shape, 0.75, np.float32)}


def flat(value: int, width: int = 40) -> Pixels:
    return np.full((20, width, 3), value, np.uint8)


@pytest.fixture
def red() -> Pixels:
    return np.tile(np.array([200, 30, 60], np.uint8), (20, 40, 1))


def test_readings_come_in_order_whatever_the_batches() -> None:
    values = [250, 3, 200, 10, 0, 255, 90]
    images = [flat(value, width=30 + 20 * n) for n, value in enumerate(values)]
    for resize in ("stretch", "height"):
        for batch_size in (1, 2, 64):
            readings = Brightness(resize=resize).read(images, batch_size)
            assert "".join(reading.text for reading in readings) == "abab" + "bab"
            assert [reading.key for reading in readings] == [str(n) for n in range(len(values))]
            assert {reading.confidence for reading in readings} == {0.75}


def test_no_image_gives_no_reading() -> None:
    assert Brightness().read([]) == []


AS: list[Callable[[Image.Image], Image.Image]] = [
    lambda image: image,
    lambda image: image.convert("RGBA"),
    lambda image: image.convert("P", palette=Image.Palette.ADAPTIVE, colors=4),
    lambda image: image.convert("CMYK"),
]


@pytest.mark.parametrize("change", AS, ids=["RGB", "RGBA", "P", "CMYK"])
def test_pil_images_of_every_kind_show_the_same_colours(
    change: Callable[[Image.Image], Image.Image], red: Pixels
) -> None:
    reader = Brightness()
    reader.read([red, change(Image.fromarray(red))])
    assert np.abs(reader.shown[0][0].astype(int) - reader.shown[0][1]).max() <= 2


def test_bilevel_and_gray_with_alpha_are_read_from_pil() -> None:
    black = Image.new("L", (40, 20))
    clear = black.convert("LA")
    clear.putalpha(0)
    readings = Brightness(channels=1).read([black.convert("1"), Image.new("1", (40, 20), 1), clear])
    assert [reading.text for reading in readings] == ["b", "a", "a"]  # what is transparent lies on white


def test_paths_bytes_and_arrays_are_the_same_picture(red: Pixels, tmp_path: Path) -> None:
    path = tmp_path / "red.png"
    cv2.imwrite(str(path), cv2.cvtColor(red, cv2.COLOR_RGB2BGR))
    reader = Brightness()
    readings = reader.read([path, str(path), path.read_bytes(), red])
    assert [reading.key for reading in readings] == [str(path), str(path), "2", "3"]
    assert all(np.array_equal(reader.shown[0][0], image) for image in reader.shown[0][1:])


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (np.zeros((4, 4)), "image 0: a float64 array of shape (4, 4); expected uint8 HW or HWC"),
        (np.zeros((0, 4), np.uint8), "image 0: a uint8 array of shape (0, 4)"),
        (np.zeros((4, 4, 2), np.uint8), "image 0: 2 channels"),
        (b"nothing", "0: "),
        (7, "image 0: a int64 array of shape ()"),
    ],
)
def test_what_is_no_image_is_named_by_its_position(image: object, said: str) -> None:
    with pytest.raises(ImageError) as caught:
        Brightness().read([image])
    assert str(caught.value).startswith(said)


def test_what_can_be_no_name_of_a_file_is_named() -> None:
    with pytest.raises(DataError, match="null byte"):
        Brightness().read("a\0b")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DataError, match=r"nowhere/a\.png: cannot be read \(No such file"):
        Brightness().read("nowhere/a.png")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_a_pil_image_stands_as_its_file_does(kind: str, orientation: int, red: Pixels) -> None:
    picture = red.copy()
    picture[: len(red) // 3, : red.shape[1] // 4] = (0, 0, 255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(picture).save(file, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    reader = Brightness()
    reader.both_ways = False
    reader.read([file.getvalue(), Image.open(io.BytesIO(file.getvalue()))])
    assert np.abs(reader.shown[0][0].astype(int) - reader.shown[0][1]).max() <= 2


def test_bytes_of_any_kind_are_one_picture(red: Pixels) -> None:
    data = cv2.imencode(".png", red)[1].tobytes()
    assert [len(Brightness().read(kind(data))) for kind in (bytes, bytearray, memoryview)] == [1, 1, 1]


def test_outputs_that_are_no_numbers_are_damage_and_no_empty_text(red: Pixels) -> None:
    class Broken(Brightness):
        def outputs(self, images: Pixels, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
            found = super().outputs(images)
            return found | {"output_prob": found["output_prob"] * np.nan}

    with pytest.raises(ModelFileError, match="no numbers: its weights are damaged"):
        Broken().read([red])


def test_a_pil_image_with_damaged_exif_is_read_upright_and_a_memmap_is_an_array(red: Pixels, tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(red).save(file, "PNG", exif=b"Exif\0\0garbage!!")
    mapped = np.memmap(tmp_path / "m", np.uint8, "w+", shape=red.shape)
    mapped[:] = red
    reader = Brightness()
    reader.read([file.getvalue(), Image.open(io.BytesIO(file.getvalue())), mapped])
    assert all(np.array_equal(reader.shown[0][0], image) for image in reader.shown[0][1:])
