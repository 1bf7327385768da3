"""The whole spec: TAO's OCRNet keys, and what they lack."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_serializer, model_validator

from inkmill.config.base import Section
from inkmill.config.dataset import DatasetSpec
from inkmill.config.model import ModelSpec
from inkmill.config.quantize import QuantizeSpec
from inkmill.config.tasks import ConvertSpec, EngineSpec, EvaluateSpec, ExportSpec, InferenceSpec, PruneSpec
from inkmill.config.train import TrainSpec
from inkmill.crypt import SETTING, without_secret


class LicenceSpec(Section):
    """What the model card says of licences; what is not given is called unknown there."""

    weights: str | None = None
    """Licence of the trained weights, e.g. Apache-2.0."""
    data: str | None = None
    """Licence or licences of the training data."""


class Spec(Section):
    """Everything a run needs; each verb reads its own section, `model` and `dataset`."""

    model_name: str = "ocrnet"
    """TAO key; names the run."""
    encryption_key: str | None = Field(None, repr=False)
    """Model files are written encrypted with this, and read: env:NAME takes it from an environment variable, file:PATH
    from a file's first line, anything else is the passphrase itself."""
    results_dir: str = "results"
    """Folder of all results; each verb writes to results_dir/VERB."""
    wandb: dict[str, Any] | None = None
    """TAO key; accepted and unused: TensorBoard events are always written."""
    licence: LicenceSpec = Field(default_factory=LicenceSpec)
    """Who may use what, for the model card."""
    model: ModelSpec = Field(default_factory=ModelSpec)
    """The recogniser."""
    dataset: DatasetSpec = Field(default_factory=DatasetSpec)
    """The data of training and validation."""
    train: TrainSpec = Field(default_factory=TrainSpec)
    """Training."""
    evaluate: EvaluateSpec = Field(default_factory=EvaluateSpec)
    """Evaluation."""
    inference: InferenceSpec = Field(default_factory=InferenceSpec)
    """Reading images."""
    prune: PruneSpec = Field(default_factory=PruneSpec)
    """Pruning."""
    export: ExportSpec = Field(default_factory=ExportSpec)
    """Export to ONNX."""
    dataset_convert: ConvertSpec = Field(default_factory=ConvertSpec)
    """Conversion of data sets."""
    gen_trt_engine: EngineSpec = Field(default_factory=EngineSpec)
    """TensorRT engines."""
    quantize: QuantizeSpec = Field(default_factory=QuantizeSpec)
    """int8."""

    @field_serializer(SETTING)
    def _without_secret(self, given: str | None) -> str | None:
        """However a spec is printed or stored, a passphrase is not."""
        return without_secret(given)

    @model_validator(mode="after")
    def _keep_aspect_ratio_is_a_fit(self) -> Spec:
        if self.dataset.augmentation.keep_aspect_ratio and self.model.input_resize == "stretch":
            self.model.input_resize = "pad"
        return self
