"""Any Albumentations pipeline as an engine: for users who have one, and for ops that inkmill does not have.

It runs image by image on the CPU, in worker processes or in DALI's Python operator. Its generators are seeded for
each image from (seed, epoch, index), so the result does not depend on worker, batch or loader, as with inkmill's ops.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from inkmill.data.augment.random_numbers import sample_states
from inkmill.errors import ConfigError, MissingExtraError
from inkmill.files import read_data

Images = NDArray[np.uint8]


class AlbumentationsPipeline:
    """A pipeline in Albumentations' own serialised form.

    Args:
        serialised: what `albumentations.to_dict(pipeline)` gives.

    Raises:
        ConfigError: the dict is no such pipeline, or names a transform that Albumentations does not have.
        MissingExtraError: Albumentations is not installed.
    """

    kind: Literal["code"] = "code"
    """It runs where batches are assembled, on the CPU; an `Augmentation` is numbers that any engine can apply."""

    def __init__(self, serialised: Mapping[str, Any]) -> None:
        self._serialised = dict(serialised)
        self._of_thread = threading.local()
        self._of_thread.pipeline = _build(self._serialised)

    @classmethod
    def from_file(cls, path: str | Path) -> AlbumentationsPipeline:
        """Read a pipeline from a YAML or JSON file, as `albumentations.save` writes it.

        Raises:
            ConfigError: the file cannot be read or holds no pipeline.
        """
        try:
            content = yaml.safe_load(read_data(path, 1 << 20, pipes=True).decode("utf-8"))  # JSON is YAML too
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path}: the Albumentations pipeline cannot be read: {error}") from None
        if not isinstance(content, Mapping):
            raise ConfigError(f"{path}: expected a serialised Albumentations pipeline, got {type(content).__name__}")
        return cls(content)

    def __reduce__(self) -> tuple[type[AlbumentationsPipeline], tuple[dict[str, Any]]]:
        return type(self), (self._serialised,)  # a worker process builds its own

    def for_windows(self) -> AlbumentationsPipeline:
        """Refuse: regions cannot follow.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "regions cannot follow an Albumentations pipeline: describe the changes by augmentation.ops or a preset"
        )

    def apply(self, images: Images, seed: int, epoch: int, index: NDArray[np.int64]) -> Images:
        """Apply the pipeline to a batch.

        Args:
            images: uint8 (B, H, W, C), RGB or gray.
            seed: seed of the run.
            epoch: the epoch.
            index: int64 (B,), positions of the samples in the source.

        Returns:
            uint8 (B, H, W, C).

        Raises:
            ConfigError: the pipeline changes the size or type of an image.
        """
        out = np.empty_like(images)
        for row, state in enumerate(sample_states(seed, epoch, np.asarray(index, np.int64))[:, None]):
            out[row] = self.apply_one(images[row], state)
        return out

    def apply_one(self, image: Images, state: NDArray[np.uint64]) -> Images:
        """Apply the pipeline to one image.

        Args:
            image: uint8 (H, W, C).
            state: one uint64, the random state that `sample_states` gives the sample.

        Raises:
            ConfigError: the pipeline refuses the image, or changes its size or type.
        """
        if not hasattr(self._of_thread, "pipeline"):  # its generators are its own, so threads cannot share one
            self._of_thread.pipeline = _build(self._serialised)
        pipeline = self._of_thread.pipeline
        pipeline.set_random_seed(state.item() & 0xFFFFFFFF)
        try:
            changed = pipeline(image=image)["image"]
        except Exception as error:  # foreign code, which may raise anything
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            raise ConfigError(f"the Albumentations pipeline refuses an image of {image.shape}: {reason}") from error
        if not isinstance(changed, np.ndarray) or changed.size != image.size or changed.dtype != np.uint8:
            raise ConfigError(
                f"the Albumentations pipeline must keep an image uint8 of {image.shape}, it gave "
                f"{getattr(changed, 'dtype', type(changed).__name__)} of {getattr(changed, 'shape', '?')}: "
                "leave resizing, normalising and ToTensorV2 out, inkmill does them"
            )
        return changed.reshape(image.shape)


def _build(serialised: dict[str, Any]) -> Any:
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # else its import asks the network for a newer version
    try:
        import albumentations
    except ImportError:
        raise MissingExtraError("albumentations", "albumentations", "an Albumentations pipeline") from None
    try:  # only names that Albumentations itself registered are looked up, so a file cannot run other code
        pipeline = albumentations.from_dict(serialised)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"this is no serialised Albumentations pipeline (albumentations.to_dict): {error}") from None
    return pipeline if isinstance(pipeline, albumentations.Compose) else albumentations.Compose([pipeline])
