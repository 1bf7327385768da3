"""`dataset`: which images, which labels, which characters, and how they are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from inkmill.config.base import MAX_BATCH_SIZE, MAX_WORKERS, Section
from inkmill.config.synthetic import SyntheticSpec
from inkmill.registry import load_attribute, names_in

if TYPE_CHECKING:
    LoaderName = str
else:
    LoaderName = Literal["auto", *names_in("inkmill.data.loaders:SELECTABLE")]


class SourceSpec(Section):
    """One data set."""

    path: str
    """A folder of images, a label file, an LMDB folder, or a tar shard pattern."""
    gt_file: str | None = None
    """The label file, where `path` is the folder of the images it names."""
    format: str = "auto"
    """Name of the label format; auto recognises it."""
    inside_only: bool = False
    """Images that the label file names outside the folder of the set (absolute paths, `..`, links) count as missing;
    for label files of strangers."""
    weight: float = Field(1.0, gt=0)
    """How often its samples are drawn in training, relative to the others: 2 shows each sample twice an epoch."""


def _as_source(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


Sources = Annotated[list[Annotated[SourceSpec, BeforeValidator(_as_source)]], BeforeValidator(_as_list)]
Paths = Annotated[list[str], BeforeValidator(_as_list)]


class AugmentationSpec(Section):
    """Random changes to training images. The first block are TAO's keys; `ops` or `preset` say more."""

    keep_aspect_ratio: bool = False
    """Same as model.input_resize=pad."""
    aug_prob: float = Field(0.0, ge=0, le=1)
    """Share of the images to which the three changes below may happen; 0 turns them off."""
    reverse_color_prob: float = Field(0.5, ge=0, le=1)
    """Probability of inverting the colours."""
    rotate_prob: float = Field(0.5, ge=0, le=1)
    """Probability of a rotation."""
    max_rotation_degree: float = Field(5, ge=0, le=360)
    """Largest rotation in degrees, to either side."""
    blur_prob: float = Field(0.5, ge=0, le=1)
    """Probability of a Gaussian blur."""
    gaussian_radius_list: list[int] = Field(default_factory=lambda: [1, 2, 3, 4])
    """Blur radii to choose from, in pixels of the model's input (the radius is the sigma)."""
    preset: str | None = None
    """Name of a shipped list of changes; see docs/augmentation.md."""
    ops: list[dict[str, Any]] = Field(default_factory=list)
    """List of changes, each {op: NAME, p: probability, its ranges ...}; see docs/augmentation.md."""
    albumentations: str | None = None
    """Instead of all of the above: a file that albumentations.save wrote (YAML or JSON)."""

    @model_validator(mode="after")
    def _albumentations_comes_alone(self) -> AugmentationSpec:
        others = {"aug_prob": self.aug_prob, "preset": self.preset, "ops": self.ops}
        if self.albumentations and any(others.values()):
            given = " and ".join(name for name, value in others.items() if value)
            raise ValueError(f"an albumentations pipeline cannot be combined with {given}: give one of them")
        return self


class CalibrationImages(Section):
    """Images that calibrate a quantised model."""

    images_dir: str = ""
    """Folder of images."""


class DatasetSpec(Section):
    """The data of training and validation."""

    train: Sources = Field(default_factory=list)
    """Training sets: paths, or {path, gt_file, format, weight}."""
    val: Sources = Field(default_factory=list)
    """Validation sets; without any, val_fraction of the training samples are held out."""
    val_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of the training samples held out when no validation set is given; the same ones for the same data."""
    train_dataset_dir: Paths = Field(default_factory=list)
    """TAO: training sets (LMDB folders, or image folders with train_gt_file)."""
    train_gt_file: str | None = None
    """TAO: label file of the first training folder."""
    val_dataset_dir: Paths = Field(default_factory=list)
    """TAO: validation sets."""
    val_gt_file: str | None = None
    """TAO: label file of the first validation folder."""
    label_pattern: str = r"(?P<label>[^.]+)(\.\d+)?"
    """Regular expression for labels in file names, matched against the whole name without its last suffix."""
    character_list_file: str | None = None
    """Characters to read, one a line; without it they are taken from the training labels."""
    normalise: Annotated[list[str], BeforeValidator(_as_list)] = Field(default_factory=list)
    """Rule sets applied to every label after NFC, e.g. [typographic]; see docs/text.md."""
    max_label_length: int = Field(25, gt=0, le=4096)
    """Longest label, in characters; longer ones are left out and counted."""
    max_lost: float = Field(0.05, ge=0, le=1)
    """Training refuses to start when a larger share of a set would be left out."""
    batch_size: int = Field(32, ge=1, le=MAX_BATCH_SIZE)
    """Images a step and GPU; of a set with fewer images all are a batch."""
    workers: int = Field(4, ge=0, le=MAX_WORKERS)
    """Loader processes; 0 loads in the training process. Not given, loader=auto chooses by the cores."""
    loader: LoaderName = "auto"
    """Who makes the batches: processes, or NVIDIA DALI; auto takes what `inkmill diagnose` found best for this
    machine, data and model, else processes."""
    cache: Literal["none", "disk", "ram", "gpu"] = "none"
    """Where resized pictures are kept, so that none is decoded twice; what does not fit is decoded again each epoch."""
    cache_gib: float = Field(32.0, gt=0)
    """Largest size of the disk and RAM tiers, in GiB for each set."""
    cache_dir: str | None = None
    """Folder of the disk tier; ~/.cache/inkmill by default."""
    augment_on: Literal["auto", "cpu", "gpu", "dali"] = "auto"
    """Where random changes are applied; auto takes the GPU where there is one and the input size is fixed. With
    loader=dali, dali applies them by DALI's own operators, on the GPU where there is one."""
    decode_on: Literal["cpu", "mixed"] = "cpu"
    """loader=dali: decode on the CPU, or JPEGs on the GPU (mixed)."""
    dali_reader: Literal["inkmill", "dali"] = "inkmill"
    """loader=dali: who reads training shards; DALI's own reader shuffles only locally, see docs/dali.md."""
    augmentation: AugmentationSpec = Field(default_factory=AugmentationSpec)
    """Random changes to training images."""
    synthetic: SyntheticSpec = Field(default_factory=SyntheticSpec)
    """Synthetic text among the training samples; see docs/synth.md."""
    on_bad_sample: Literal["raise", "skip", "quarantine"] = "raise"
    """What happens to a sample that turns out unreadable while training: raise an error, skip it (counted and shown),
    or quarantine it (skipped, and copied to {results_dir}/train/quarantine with the reason)."""
    quant_calibration_dataset: CalibrationImages = Field(default_factory=CalibrationImages)
    """Images that calibrate a quantised model."""

    @model_validator(mode="after")
    def _gt_file_has_its_folder(self) -> DatasetSpec:
        for which in ("train", "val"):
            if getattr(self, f"{which}_gt_file") and not getattr(self, f"{which}_dataset_dir"):
                raise ValueError(f"{which}_gt_file needs {which}_dataset_dir, the folder of its images")
        return self

    @model_validator(mode="after")
    def _the_loader_takes_what_is_set(self) -> DatasetSpec:
        # What each loader takes stands in its record, in a room above: hence no import at the top.
        for info in load_attribute("inkmill.data.loaders:LOADERS").values():
            if info.name == self.loader:
                continue
            keys = [key for key in info.options if getattr(self, key) != DatasetSpec.model_fields[key].default]
            if self.augment_on == info.name:
                keys.append("augment_on")
            if keys:
                value = getattr(self, keys[0])
                raise ValueError(f"{keys[0]}={value} needs loader={info.name}, not loader={self.loader}")
        return self

    def sources(self, which: Literal["train", "val"]) -> list[SourceSpec]:
        """Return the sets of one side, ours and TAO's spelling joined."""
        sources: list[SourceSpec] = list(getattr(self, which))
        gt_file = getattr(self, f"{which}_gt_file") or None
        for position, path in enumerate(getattr(self, f"{which}_dataset_dir")):
            sources.append(SourceSpec(path=path, gt_file=gt_file if position == 0 else None))
        return sources
