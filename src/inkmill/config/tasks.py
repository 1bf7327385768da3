"""The sections of the other verbs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from inkmill.config.base import MAX_BATCH_SIZE, MAX_WORKERS, Section
from inkmill.config.dataset import Sources
from inkmill.config.train import _as_ids


class GpuSection(Section):
    """What every verb that runs a model shares."""

    num_gpus: int = Field(1, ge=0)
    """GPUs to use; evaluation and reading use one."""
    gpu_ids: Annotated[list[int], BeforeValidator(_as_ids)] = Field(default_factory=lambda: [0])
    """Which GPUs."""
    gpu_id: int | None = Field(None, ge=0)
    """Older TAO spelling of gpu_ids."""
    num_nodes: int = Field(1, ge=1)
    """TAO key; one node is used."""
    checkpoint: str | None = None
    """The model: a .safetensors or .pth file of `train`, or a .onnx file of `export`."""
    beam_width: int = Field(1, ge=1, le=256)
    """CTC: texts that are pursued side by side; 1 takes the best class of each step. A .onnx file needs
    export.probabilities for more than 1."""
    lexicon: str | None = None
    """File of words, one a line: the only texts that may be read."""
    trt_engine: str | None = None
    """TAO Deploy key, without effect: the checkpoint is what reads."""
    results_dir: str | None = None
    """Where results go; {results_dir}/VERB by default."""
    input_width: int | None = None
    """TAO Deploy key; the model file knows its input size."""
    input_height: int | None = None
    """TAO Deploy key; the model file knows its input size."""


class EvaluateSpec(GpuSection):
    """`evaluate`."""

    test: Sources = Field(default_factory=list)
    """Test sets: paths, or {path, gt_file, format}."""
    test_dataset_dir: str | None = None
    """TAO: the test set, an LMDB folder or an image folder with test_dataset_gt_file."""
    test_dataset_gt_file: str | None = None
    """TAO: label file of the test folder."""
    batch_size: int = Field(64, ge=1, le=MAX_BATCH_SIZE)
    """Images a batch; the strings do not depend on it."""
    workers: int = Field(2, ge=0, le=MAX_WORKERS)
    """Loader processes."""
    worst: int = Field(100, ge=0)
    """How many errors the error page shows."""


class InferenceSpec(GpuSection):
    """`infer`."""

    inference_dataset_dir: str | None = None
    """TAO: folder of images, searched recursively."""
    batch_size: int = Field(64, ge=1, le=MAX_BATCH_SIZE)
    """Images a batch; the strings do not depend on it."""
    workers: int = Field(2, ge=0, le=MAX_WORKERS)
    """Loader processes."""


class ConvertSpec(Section):
    """`convert` (TAO's dataset_convert)."""

    input_img_dir: str | None = None
    """Folder of the images."""
    gt_file: str | None = None
    """Label file."""
    format: str = "auto"
    """Name of the label format; auto recognises it."""
    results_dir: str | None = None
    """Where the converted set goes; {results_dir}/dataset_convert/lmdb by default."""


class PruneSetting(Section):
    """How much is pruned, and what."""

    mode: Literal["amount", "threshold", "experimental_hybrid"] = "amount"
    """What decides which channels go: the same share everywhere, a least score, or one cut through all layers."""
    amount: float | None = Field(0.4, ge=0, le=1)
    """Share to remove: of the channels of every group of layers, with experimental_hybrid of all filters."""
    threshold: float | None = Field(None, ge=0, le=1)
    """Channels with this score or less go; the highest of a group has 1."""
    granularity: int = Field(8, gt=0)
    """Channel counts are kept at multiples of this."""
    raw_prune_score: Literal["L1", "L2"] = "L1"
    """The norm by which filters are scored."""


class PruneSpec(Section):
    """`prune`."""

    checkpoint: str | None = None
    """The model to prune: a .safetensors or .pth file of `train`."""
    gpu_id: int = Field(0, ge=0)
    """Which GPU measures; without one the CPU does."""
    results_dir: str | None = None
    """Where results go."""
    pruned_file: str | None = None
    """The file to write, .safetensors or .pth; by default beside the checkpoint, its name with _pruned."""
    prune_setting: PruneSetting = Field(default_factory=PruneSetting)
    """How much is pruned."""


class ExportSpec(Section):
    """`export`."""

    checkpoint: str | None = None
    """The model to export."""
    gpu_id: int = Field(0, ge=0)
    """Which GPU."""
    onnx_file: str | None = None
    """The ONNX file to write; without one it has the checkpoint's name with .onnx and lies in export.results_dir, or
    beside the checkpoint."""
    probabilities: bool = False
    """Add a third output, the probability of every class at every step, for beam search and lexicons; nvOCDR and TAO
    Deploy take files without it."""
    profile: Literal["default", "paddle"] = "default"
    """Inputs and outputs as TAO OCRNet has them, or as PaddleOCR and RapidOCR have (readers with prediction=CTC)."""
    precision: Literal["fp32", "fp16"] = "fp32"
    """Arithmetic of the graph; inputs and outputs are fp32 either way."""
    results_dir: str | None = None
    """Where results go."""


class CalibrationSpec(Section):
    """What an INT8 engine measures ranges on."""

    cal_image_dir: list[str] = Field(default_factory=list)
    """Folders of images; dataset.train without any."""
    cal_cache_file: str | None = None
    """File of the measured ranges: read where it is of the same ONNX file, else written."""
    cal_batch_size: int = Field(8, ge=1)
    """Times cal_batches it is how many images are read; it changes nothing else."""
    cal_batches: int = Field(64, ge=1)
    """Batches."""


class TensorRTSpec(Section):
    """How a TensorRT engine is built."""

    data_type: Literal["FP32", "FP16", "INT8", "fp32", "fp16", "int8"] = "FP32"
    """Arithmetic of the engine."""
    workspace_size: int = Field(1024, ge=0)
    """Memory in MiB that a layer may use while it works; 0 leaves TensorRT's own bound."""
    min_batch_size: int = Field(1, ge=1)
    """Smallest batch."""
    opt_batch_size: int | None = Field(None, ge=1)
    """Batch the engine is tuned for; the largest by default."""
    max_batch_size: int = Field(32, ge=1)
    """Largest batch."""
    layers_precision: list[str] = Field(default_factory=list)
    """`LAYER:fp32` pairs: what an FP16 or INT8 engine leaves in fp32; LAYER may be a pattern (head.*)."""
    calibration: CalibrationSpec = Field(default_factory=CalibrationSpec)
    """INT8 calibration."""


class EngineSpec(Section):
    """`engine` (TAO's gen_trt_engine)."""

    results_dir: str | None = None
    """Where results go."""
    gpu_id: int = Field(0, ge=0)
    """Which GPU."""
    onnx_file: str | None = None
    """The reader: a .onnx file of `export`, or a model file of `train`, which is exported on the way."""
    trt_engine: str | None = None
    """The engine to write; by default beside the reader, with .engine."""
    timing_cache: str | None = None
    """File of what TensorRT measured of its kernels: read where there is one, and written; it makes the next build
    faster."""
    batch_size: int = -1
    """TAO key; the batch sizes of `tensorrt` count."""
    verbose: bool = False
    """Print TensorRT's own messages."""
    tensorrt: TensorRTSpec = Field(default_factory=TensorRTSpec)
    """How the engine is built."""
