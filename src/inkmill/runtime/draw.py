"""Pictures with what was found drawn into them: `infer --draw FOLDER`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np

from inkmill.data.pipeline.decode import decode
from inkmill.data.sources import fresh_name
from inkmill.errors import ConfigError
from inkmill.files import open_data, write_bytes_atomic
from inkmill.tasks.base import Prediction, Task

_QUALITY = 90


def drawn(predictions: Iterable[Prediction], task: Task, folder: Path) -> Iterator[Prediction]:
    """Pass predictions of picture files on, and write each picture with its regions as FOLDER/NAME.jpg.

    Raises:
        ConfigError: the model finds no regions (at once).
        OutputError: the folder cannot be written.
    """
    if "regions" not in task.prediction_fields:
        raise ConfigError(f"a {task.noun} finds no regions to draw: leave --draw out")
    return _drawn(predictions, task, folder)


def _drawn(predictions: Iterable[Prediction], task: Task, folder: Path) -> Iterator[Prediction]:
    names: set[str] = set()
    for prediction in predictions:
        with open_data(prediction.key) as file:
            image = decode(file.read(), 3)
        image = task.draw(image, None, prediction)
        name = fresh_name(Path(prediction.key).stem, names)  # pictures of several folders may have one name
        names.add(name)
        _, data = cv2.imencode(".jpg", np.ascontiguousarray(image[:, :, ::-1]), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes_atomic(folder / f"{name}.jpg", data.tobytes())
        yield prediction
