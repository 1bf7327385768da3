"""Reading with ONNX Runtime: no torch, nothing beside the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inkmill.errors import MissingExtraError, ModelFileError
from inkmill.runtime.card import ReaderCard
from inkmill.runtime.reader import Reader


class OnnxReader(Reader):
    """Reads with ONNX Runtime on the CPU.

    Args:
        path: a .onnx file of `inkmill export`.

    Raises:
        ModelFileError: missing, damaged, or without a reader's card.
    """

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            raise MissingExtraError("onnxruntime", "train", "reading .onnx files") from error
        if not path.is_file():
            raise ModelFileError(f"{path}: no such model file; give the .onnx file that `inkmill export` wrote")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors share no public base
            raise ModelFileError(f"{path}: damaged, or not an ONNX file") from error
        metadata = self._session.get_modelmeta().custom_metadata_map
        if "inkmill" not in metadata:
            raise ModelFileError(f"{path}: an ONNX file without a reader's card; export it with `inkmill export`")
        super().__init__(ReaderCard.from_json(metadata["inkmill"], str(path)))

    def classify(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return class ids and their probabilities, both (B, S), of fitted uint8 BHWC images."""
        pixels = (images.transpose(0, 3, 1, 2).astype(np.float32) - 127.5) / 127.5
        ids, probabilities = self._session.run(["output_id", "output_prob"], {"input": np.ascontiguousarray(pixels)})
        return ids.astype(np.int32), probabilities.astype(np.float32)
