"""Reading with ONNX Runtime: no torch, nothing beside the file.

A file is looked at in three steps, of which each may refuse it: its outline (onnx_file.py), its header, and the
inputs and outputs of its graph against the header.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inkmill import weights
from inkmill.crypt import Key, find_key, read_plain
from inkmill.errors import ConfigError, MissingExtraError, ModelFileError, first_line
from inkmill.machine import physical_cores
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.onnx_file import MAX_BYTES, read_outline
from inkmill.modelfile.onnx_writer import write_onnx
from inkmill.runtime.reader import BaseReader
from inkmill.tasks.base import Decoder, Outputs

Device = Literal["cpu", "cuda"]

_TYPES = {"int32": "tensor(int32)", "float32": "tensor(float)"}


class OnnxReader(BaseReader):
    """Reads with ONNX Runtime; several threads may use one reader.

    Args:
        path: a .onnx file of `inkmill export`; None for the text reader that the package carries.
        device: "cpu" or "cuda"; by default the GPU where onnxruntime-gpu is installed and finds one.
        encryption_key: of an encrypted file: env:NAME, file:PATH or the passphrase.
        decoding: options of the task's decoder, as for `inkmill.load`.
        threads: of one batch on the CPU; by default as many as there are cores that this process may use.

    Raises:
        InkmillError: no path, and this installation carries no reader.
        ModelFileError: missing, damaged, encrypted with another key, or without a header.
        ConfigError: no such device, or a decoder that needs outputs which this file does not give.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        device: str | None = None,
        *,
        encryption_key: str | Key | None = None,
        threads: int | None = None,
        **decoding: Any,
    ) -> None:
        path = weights.path("reader") if path is None else path
        self._where = str(path)
        content = file_content(Path(path), encryption_key)
        metadata, has_half = read_outline(content, self._where)
        if "inkmill" not in metadata:
            raise ModelFileError(f"{path}: an ONNX file without a model's header; export it with `inkmill export`")
        super().__init__(ModelHeader.from_json(metadata["inkmill"], self._where))
        self._session, self.runs_on = open_session(
            content, self._where, device, threads, has_half, many_sizes=self.resize.buckets
        )
        self._check_graph()
        self.use(self.task.decoder(**decoding))

    def _check_graph(self) -> None:
        """The graph must take and give what the header says, under the task's own names or those of a profile."""
        given = {output.name: output.type for output in self._session.get_outputs()}
        # 1. Whose names are these?
        wanted = {name: _TYPES[one.dtype] for name, one in self.task.outputs.items() if not one.optional}
        profile = next((one for one in self.task.profiles.values() if given.keys() == one.outputs.keys()), None)
        if profile is not None:
            wanted = {name: _TYPES[self.task.outputs[ours].dtype] for name, ours in profile.outputs.items()}
        # 2. Its only input has the header's size; what is free in the graph is a name there.
        self._bgr = profile is not None and profile.bgr
        several, pages = self.resize.buckets, self.resize.mode == "page"
        height = None if pages or self.resize.mode == "aspect" else self.resize.height
        width = None if pages or several else self.resize.width
        sizes = (3 if self._bgr else self.resize.channels, height, width)
        inputs = self._session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        fits = len(shape) == 4 and all(
            size is None or found == size or isinstance(found, str)
            for found, size in zip(shape[1:], sizes, strict=True)
        )
        if not fits or inputs[0].type != "tensor(float)" or not wanted.items() <= given.items():
            raise ModelFileError(
                f"{self._where}: its graph is not the one that its header describes; export it once more"
            )
        # 3. The graph's name of each output that it gives.
        self._input = inputs[0].name
        if profile is not None:
            self._names = {ours: name for name, ours in profile.outputs.items()}
        else:
            self._names = {
                name: name for name, one in self.task.outputs.items() if given.get(name) == _TYPES[one.dtype]
            }

    def use(self, decoder: Decoder) -> None:
        """See BaseReader.use."""
        super().use(decoder.limited_to(self._names, self._where))

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the outputs that this file gives (see `Task.outputs`)."""
        return tuple(self._names)

    def outputs(self, images: NDArray[np.uint8], names: Sequence[str] | None = None) -> Outputs:
        """See BaseReader.outputs.

        Raises:
            ConfigError: the file does not give one of `names`.
        """
        names = self.decoder.needs if names is None else names
        if missing := [name for name in names if name not in self._names]:
            raise ConfigError(f"{self._where}: its graph does not give {missing[0]}; export it with that output")
        if self._bgr:  # also of what is gray
            images = images.repeat(3, axis=3) if images.shape[3] == 1 else images[..., ::-1]
        pixels = (images.transpose(0, 3, 1, 2).astype(np.float32) - 127.5) / 127.5
        try:
            arrays = self._session.run(
                [self._names[name] for name in names], {self._input: np.ascontiguousarray(pixels)}
            )
        except Exception as error:  # onnxruntime's errors share no public base
            raise ModelFileError(f"{self._where}: cannot be run ({first_line(error)})") from error
        found = dict(zip(names, arrays, strict=True))
        self.task.check_outputs(found, len(images), self._where)
        return found


def write_and_open(graph: Any, header: ModelHeader, path: Path, key: Key | None) -> OnnxReader:
    """Write an `onnx.ModelProto` as a model file and return its reader on the CPU."""
    write_onnx(graph, header, path, key)
    return OnnxReader(path, "cpu", encryption_key=key)


def file_content(path: Path, given: str | Key | None = None) -> bytes:
    """Return the bytes of an ONNX file, decrypted; ModelFileError where there is none or it is too large."""
    if not path.is_file():
        raise ModelFileError(f"{path}: no such model file; give the .onnx file that `inkmill export` wrote")
    if path.stat().st_size > MAX_BYTES:
        raise ModelFileError(f"{path}: {path.stat().st_size:,} bytes, and an ONNX file has at most {MAX_BYTES:,}")
    return read_plain(path, find_key(given) if isinstance(given, str) else given)
    # A pattern is kept for every size of input; without it memory is used again within a run just as well.


def open_session(
    content: bytes,
    where: str,
    device: str | None,
    threads: int | None,
    has_half: bool = False,
    many_sizes: bool = False,
) -> tuple[Any, str]:
    """Return a session of ONNX Runtime, and what it runs on in a few words.

    Args:
        content: an ONNX file whose outline was read (see `inkmill.modelfile.onnx_file`).
        where: its name, for the errors.
        device: "cpu" or "cuda"; by default the GPU where there is one.
        threads: on the CPU; by default as many as there are cores that this process may use.
        has_half: whether weights are fp16.
        many_sizes: whether inputs have many sizes; less memory is kept then.

    Raises:
        ConfigError: no such device, or no whole number of threads.
        ModelFileError: not a graph that can be run.
    """
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
    # A pattern is kept for every size of input; without them memory is reused within a run just as well.
    options.enable_mem_pattern = not many_sizes
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
