"""The whole spec: TAO's OCRNet keys, and what they lack."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, create_model, field_serializer, field_validator, model_validator

from inkmill.config.base import Section
from inkmill.config.dataset import DatasetSpec
from inkmill.config.model import ModelSpec
from inkmill.config.quantize import QuantizeSpec
from inkmill.config.stages import check_stages
from inkmill.config.tasks import ConvertSpec, EngineSpec, EvaluateSpec, ExportSpec, InferenceSpec, PruneSpec
from inkmill.config.train import TrainSpec
from inkmill.crypt import SETTING, without_secret
from inkmill.registry import suggest


class LicenceSpec(Section):
    """What the model card says of licences; what is not given is called unknown there."""

    weights: str | None = None
    """Licence of the trained weights, e.g. Apache-2.0."""
    data: str | None = None
    """Licence or licences of the training data."""


class _CommonSpec(Section):
    """Everything a run needs; each verb reads its own section, `model` and `dataset`."""

    task: str = "recognition"
    """What is learned and read: recognition (a text in a picture)."""
    model_name: str = "ocrnet"
    """TAO key; names the run."""
    encryption_key: str | None = Field(None, repr=False)
    """Model files are written encrypted with this, and read: env:NAME takes it from an environment variable, file:PATH
    from a file's first line, anything else is the passphrase itself."""
    results_dir: str = "results"
    """Folder of all results; each verb writes to results_dir/VERB."""
    wandb: dict[str, Any] | None = None
    """TAO key; accepted and unused: TensorBoard events are always written."""
    stages: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """`train`: trainings one after the other, by name. Each is this spec with the keys changed that it names, writes to
    {results_dir}/NAME/train, and begins with the best weights of the one before; see docs/training.md."""
    licence: LicenceSpec = Field(default_factory=LicenceSpec)
    """Who may use what, for the model card."""
    model: ModelSpec = Field(default_factory=ModelSpec)
    """The network and its input."""
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

    @field_validator("task")
    @classmethod
    def _is_registered(cls, value: str) -> str:
        known = _tasks()
        if value not in known:
            raise ValueError(f"unknown task {value!r}{suggest(value, known)}; known: {', '.join(known)}")
        return value

    @model_validator(mode="after")
    def _stages_are_specs(self) -> Self:
        check_stages(self)  # type: ignore[arg-type]  # Spec adds the tasks' sections to this class
        return self

    @model_validator(mode="after")
    def _keep_aspect_ratio_is_a_resize(self) -> Self:
        if self.dataset.augmentation.keep_aspect_ratio and self.model.input_resize == "stretch":
            self.model.input_resize = "pad"
        return self


def _tasks() -> Mapping[str, Any]:
    """Return the list of tasks. It stands in a room above this one, which is why it is looked up by name."""
    tasks: Mapping[str, Any] = import_module("inkmill.tasks").TASKS
    return tasks


def _task_sections() -> dict[str, Any]:
    """Return the fields of a spec that tasks declare in their own folders: a section each, named after its task."""
    fields: dict[str, Any] = {}
    for name, entry in _tasks().items():
        if entry.section is not None:
            section = import_module("inkmill.tasks").load_object(entry.section)
            description = next(iter((section.__doc__ or name).splitlines()))
            fields[name] = (section, Field(default_factory=section, description=description))
    return fields


if TYPE_CHECKING:

    class Spec(_CommonSpec):
        """Everything a run needs; each verb reads its own section, `model` and `dataset`."""

else:
    Spec = create_model(
        "Spec", __base__=_CommonSpec, __module__=__name__, __doc__=_CommonSpec.__doc__, **_task_sections()
    )
