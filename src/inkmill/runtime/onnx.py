"""Reading with ONNX Runtime: no torch, nothing beside the file.

A file is looked at in three steps, of which each may refuse it: its outline (onnx_file.py), its card, and the inputs
and outputs of its graph against the card.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inkmill.crypt import Key, find_key, read_plain
from inkmill.errors import ConfigError, MissingExtraError, ModelFileError, first_line
from inkmill.machine import physical_cores
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.onnx_file import MAX_BYTES, read_outline
from inkmill.runtime.reader import BaseReader

Device = Literal["cpu", "cuda"]

ALL = "probabilities"
PADDLE_INPUT, PADDLE_OUTPUT = "x", "softmax"
_OUTPUTS = {"output_id": "tensor(int32)", "output_prob": "tensor(float)"}
_PADDLE_OUTPUTS = {PADDLE_OUTPUT: "tensor(float)"}


class OnnxReader(BaseReader):
    """Reads with ONNX Runtime; several threads may use one reader.

    Args:
        path: a .onnx file of `inkmill export`.
        device: "cpu" or "cuda"; by default the GPU where onnxruntime-gpu is installed and finds one.
        encryption_key: of an encrypted file: env:NAME, file:PATH or the passphrase.
        beam_width: of CTC's prefix beam search, which needs a file exported with export.probabilities; 1 is greedy.
        words: the only texts that may be read (a lexicon).
        threads: of one batch on the CPU; by default as many as there are cores that this process may use.

    Raises:
        ModelFileError: missing, damaged, encrypted with another key, or without a reader's card.
        ConfigError: no such device, or a beam that this file has no probabilities for.
    """

    def __init__(
        self,
        path: str | Path,
        device: str | None = None,
        *,
        encryption_key: str | Key | None = None,
        beam_width: int = 1,
        words: Iterable[str] | None = None,
        threads: int | None = None,
    ) -> None:
        self._where = str(path)
        content = _content(Path(path), encryption_key)
        metadata, has_half = read_outline(content, self._where)
        if "inkmill" not in metadata:
            raise ModelFileError(f"{path}: an ONNX file without a reader's card; export it with `inkmill export`")
        card = ModelHeader.from_json(metadata["inkmill"], self._where)
        super().__init__(card, beam_width=beam_width, words=words)
        self._session, self.runs_on = _session(content, self._where, device, threads, has_half)
        self._check_graph()

    def _check_graph(self) -> None:
        """The graph must take and give what the card says."""
        outputs = {output.name: output.type for output in self._session.get_outputs()}
        self._paddle = outputs == _PADDLE_OUTPUTS
        channels = 3 if self._paddle else self.resize.channels
        wanted = (channels, self.resize.height, None if self.resize.mode == "height" else self.resize.width)
        inputs = self._session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        fits = len(shape) == 4 and all(
            size is None or found == size or isinstance(found, str)
            for found, size in zip(shape[1:], wanted, strict=True)
        )
        known = self._paddle or _OUTPUTS.items() <= outputs.items()
        if not fits or inputs[0].type != "tensor(float)" or not known:
            raise ModelFileError(
                f"{self._where}: its graph is not the one that its card describes; export it once more"
            )
        self._input = inputs[0].name
        self._all = PADDLE_OUTPUT if self._paddle else ALL
        self._has_all = outputs.get(self._all) == "tensor(float)"
        if self.decoder.beam_width > 1 and not self._has_all:
            raise ConfigError(
                f"{self._where}: a beam needs the probability of every class, and this file gives the best alone; "
                "export it with export.probabilities=true"
            )
        # A lexicon does without: the word with the fewest edits.
        self.decoder.wants_all = self.decoder.wants_all and self._has_all

    def classify(self, images: NDArray[np.uint8]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the best class of each step and its probability, both (B, S), of resized uint8 BHWC images."""
        if self._paddle:
            probable = self.probabilities(images)
            return probable.argmax(axis=2).astype(np.int32), probable.max(axis=2)
        ids, probabilities = self._run(images, list(_OUTPUTS))
        if ids.shape != probabilities.shape or ids.shape[:1] != (len(images),) or ids.ndim != 2:
            raise ModelFileError(f"{self._where}: its graph gives classes of shape {ids.shape}; export it once more")
        if ids.size and not (ids.min() >= 0 and ids.max() < self.codec.num_classes):
            raise ModelFileError(f"{self._where}: its graph gives classes that its card does not know")
        return ids, probabilities

    def probabilities(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the probability of every class at every step, (B, S, K), of resized uint8 BHWC images.

        Raises:
            ConfigError: the file gives only the best class.
        """
        if not self._has_all:
            return super().probabilities(images)
        (found,) = self._run(images, [self._all])
        if found.ndim != 3 or found.shape[0] != len(images) or found.shape[2] != self.codec.num_classes:
            raise ModelFileError(f"{self._where}: its graph gives probabilities of shape {found.shape}")
        return found

    def _run(self, images: NDArray[np.uint8], outputs: list[str]) -> list[NDArray[Any]]:
        if self._paddle:  # BGR, also of what is gray
            images = images.repeat(3, axis=3) if images.shape[3] == 1 else images[..., ::-1]
        pixels = (images.transpose(0, 3, 1, 2).astype(np.float32) - 127.5) / 127.5
        try:
            found: list[NDArray[Any]] = self._session.run(outputs, {self._input: np.ascontiguousarray(pixels)})
        except Exception as error:  # onnxruntime's errors share no public base
            raise ModelFileError(f"{self._where}: cannot be run ({first_line(error)})") from error
        return found


def _content(path: Path, given: str | Key | None) -> bytes:
    if not path.is_file():
        raise ModelFileError(f"{path}: no such model file; give the .onnx file that `inkmill export` wrote")
    if path.stat().st_size > MAX_BYTES:
        raise ModelFileError(f"{path}: {path.stat().st_size:,} bytes, and an ONNX file has at most {MAX_BYTES:,}")
    return read_plain(path, find_key(given) if isinstance(given, str) else given)


def _session(content: bytes, where: str, device: str | None, threads: int | None, has_half: bool) -> tuple[Any, str]:
    """Return a session, and what it runs on."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise MissingExtraError("onnxruntime", "train", "reading .onnx files") from error
    kind, _, number = (device or "").partition(":")
    if kind not in ("", "cpu", "cuda"):
        raise ConfigError(f"device={device}: ONNX files are read on cpu or cuda")
    providers: list[Any] = ["CPUExecutionProvider"]
    if kind != "cpu" and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        providers.insert(0, ("CUDAExecutionProvider", {"device_id": int(number or 0)}))
    elif kind == "cuda":
        raise ConfigError(f"device={device}: this onnxruntime has no CUDA; install onnxruntime-gpu in its place")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # ONNX Runtime's own default counts the cores of the machine, whatever its container or `taskset` leave.
    if threads is not None and threads < 1:
        raise ConfigError(f"threads={threads}: expected a whole number from 1 on")
    threads = threads or physical_cores()
    options.intra_op_num_threads = threads
    # onnxruntime 1.31 dies in it (a segmentation fault) on the CPU, of fp16 readers with an LSTM.
    without = ["MatmulTransposeFusion"] if has_half else []
    try:
        session = onnxruntime.InferenceSession(content, options, providers=providers, disabled_optimizers=without)
    except Exception as error:  # onnxruntime's errors share no public base
        raise ModelFileError(f"{where}: damaged, or not an ONNX file that can be run ({first_line(error)})") from error
    on_gpu = "CUDAExecutionProvider" in session.get_providers()
    if kind == "cuda" and not on_gpu:
        raise ConfigError(
            f"device={device}: onnxruntime could not start CUDA; look for missing CUDA or cuDNN libraries"
        )
    place = f"the GPU (CUDA device {number or 0})" if on_gpu else f"the CPU, {threads} threads"
    missed = "; onnxruntime-gpu could not start CUDA" if len(providers) > 1 and not on_gpu else ""
    return session, f"ONNX Runtime {onnxruntime.__version__} on {place}{missed}"
