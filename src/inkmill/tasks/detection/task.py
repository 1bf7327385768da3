"""Detection: where the text of a whole picture is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from inkmill.config.model import ModelSpec
from inkmill.data.pipeline.pages import PageResize
from inkmill.data.sources.base import Source
from inkmill.data.types import Polygons, Target
from inkmill.errors import ConfigError, DataError, ModelFileError
from inkmill.report import draw_regions
from inkmill.tasks.base import Output, Outputs, Prediction, Say, Scores, Task, Truth
from inkmill.tasks.detection.decode import PROBABILITIES, DecodeOptions, MapDecoder, Regions
from inkmill.tasks.detection.metrics import FIGURES, DetectionScores, best_threshold, match_regions, score
from inkmill.tasks.detection.rules import RegionRules
from inkmill.tasks.detection.spec import DetectionSection
from inkmill.tasks.detection.targets import MapOptions

if TYPE_CHECKING:
    from inkmill.config.spec import Spec
    from inkmill.tasks.detection.model import Detector

LEAST_SCORE = 0.3
"""While training, regions are kept from here on; which of them count is found on the validation set."""
STRIDE = 2
_READING = ("short_side", "long_side", "threshold", "box_threshold", "shape", "max_regions")
_EDGE = 0.05  # of the score; two models may differ there
_ALIKE = 0.8  # intersection over union of what is the same region
_NO_CLASSES: tuple[str, ...] = ()
_RIGHT, _MISSED, _FALSE, _IGNORED = (0, 160, 0), (220, 0, 0), (230, 140, 0), (120, 120, 120)


class DetectionHeader(DetectionSection):
    """What a model file says of a detector, besides its `model` section: its section, with what training found."""

    stride: int = Field(STRIDE, ge=1, le=4)
    """Pixels of the input that a pixel of the map covers, along each side."""


class Detection(Task):
    """Finding text.

    Args:
        model: the `model` section.
        section: kernel, sizes and thresholds.
    """

    name = "detection"
    noun = "text detector"
    figures = FIGURES
    outputs: ClassVar[Mapping[str, Output]] = {PROBABILITIES: Output("float32", ("height", "width"))}
    columns = ("truths", "found", "right", "missed", "false", "ignored")
    prediction_fields = ("count", "regions", "left_out")
    large_pictures = True

    def __init__(self, model: ModelSpec, section: DetectionSection | None = None) -> None:
        super().__init__(model)
        self.section = section or DetectionSection()

    @classmethod
    def from_data(cls, spec: Spec, sources: Sequence[Source], say: Say) -> Self:
        """Return the task of the spec: there is nothing to settle on the data."""
        return cls(spec.model, spec.detection)  # type: ignore[attr-defined]  # sections of tasks are added at run time

    @classmethod
    def from_header(cls, model: ModelSpec, part: Mapping[str, Any]) -> Self:
        """See Task.from_header."""
        section = DetectionHeader.model_validate(part)
        if section.stride != STRIDE:
            raise ValueError(f"a map of stride {section.stride}, expected {STRIDE}")
        return cls(model, section)

    def header(self) -> dict[str, Any]:
        """Return the section as plain values."""
        return DetectionHeader(**self.section.model_dump(exclude={"stride"})).model_dump(mode="json")

    def metadata(self) -> dict[str, str]:
        """Return how a map becomes regions, as JSON, for other programs."""
        section = self.section
        facts = {
            "kernel": section.kernel,
            "share": section.kernel_share,
            "threshold": section.threshold,
            "box_threshold": self.decode_options.box_threshold,
            "stride": STRIDE,
            "short_side": section.short_side,
            "long_side": section.long_side,
        }
        return {"detection": json.dumps(facts)}

    def rules(self) -> RegionRules:
        """See Task.rules."""
        return RegionRules(self.resize, self.section.min_height, self.map_options, self.decode_options)

    @property
    def resize(self) -> PageResize:
        """How whole pictures are read."""
        return PageResize(self.section.short_side, self.section.long_side, self.model.input_channel)

    @property
    def window(self) -> tuple[int, int]:
        """The crops of training: the model's input."""
        return self.model.input_height, self.model.input_width

    @property
    def map_options(self) -> MapOptions:
        """How targets are made."""
        section = self.section
        return MapOptions(section.kernel, section.kernel_share, section.min_height, section.min_visible, STRIDE)

    @property
    def decode_options(self) -> DecodeOptions:
        """How regions are found."""
        section = self.section
        least = LEAST_SCORE if section.box_threshold is None else section.box_threshold
        return DecodeOptions(
            section.kernel, section.kernel_share, section.threshold, least, section.shape, section.max_regions
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """None: text is all that is found."""
        return _NO_CLASSES

    def truths(self, targets: Sequence[Target]) -> list[Truth]:
        """Return the regions of each target.

        Raises:
            DataError: a target is something else.
        """
        for target in targets:
            if not isinstance(target, Polygons):
                kind = type(target).__name__.lower()
                raise DataError(f"a detector learns from regions, and a sample has {kind}")
        return list(targets)

    def encode(self, truths: Sequence[Truth]) -> tuple[NDArray[Any], ...]:
        """Return a batch's regions one after the other, as four arrays.

        Returns:
            points: float32 (P, 2).
            starts: int32 (R + 1), the first point of each region, and P.
            pictures: int32 (B + 1), the first region of each picture, and R.
            ignore: uint8 (R).
        """
        regions = [points for truth in truths for points in truth.points]
        points = np.concatenate([np.zeros((0, 2), np.float32), *regions]).astype(np.float32)
        starts = np.cumsum([0, *map(len, regions)], dtype=np.int32)
        pictures = np.cumsum([0, *(len(truth.points) for truth in truths)], dtype=np.int32)
        ignore = np.array([flag for truth in truths for flag in truth.ignore], np.uint8)
        return points, starts, pictures, ignore

    def changed(self, **options: Any) -> Self:
        """Return the task with other settings of its section for reading: sizes, thresholds, shape.

        Raises:
            ConfigError: no such setting, or a value that cannot be.
        """
        if unknown := [name for name in options if name not in _READING]:
            raise ConfigError(f"a {self.noun} takes no {unknown[0]}; it takes {', '.join(_READING)}")
        if "short_side" in options:  # a larger one alone asks for no more than the same proportion
            options.setdefault("long_side", max(self.section.long_side, options["short_side"]))
        try:
            section = type(self.section).model_validate(self.section.model_dump() | options)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key = ".".join(map(str, problem["loc"])) or ", ".join(options)
            raise ConfigError(f"{key}={problem['input']!r}: {problem['msg']}") from error
        return type(self)(self.model, section)

    def decoder(self, **options: Any) -> MapDecoder:
        """See Task.decoder; options are those of `changed` but the sizes, which are the reader's (runtime.Detector)."""
        if sizes := [name for name in options if name.endswith("_side")]:
            raise ConfigError(f"{sizes[0]} is no matter of decoding: give it to inkmill.runtime.Detector")
        return self.changed(**options).plain_decoder()

    def plain_decoder(self) -> MapDecoder:
        """See Task.plain_decoder."""
        return MapDecoder(self.decode_options, self.resize)

    def check_outputs(self, outputs: Outputs, batch: int, where: str) -> None:
        """Refuse maps that are no shares, too."""
        super().check_outputs(outputs, batch, where)
        found = outputs[PROBABILITIES]
        if found.size and not (found.min() >= 0 and found.max() <= 1):
            raise ModelFileError(f"{where}: its graph gives {PROBABILITIES} outside of 0..1; export it once more")

    def agree(self, ours: Prediction, theirs: Prediction) -> bool:
        """Return whether each side's regions are found by the other, but for those at the edge of counting."""
        sides = [some.found for some in (ours, theirs) if isinstance(some, Regions)]
        edge = self.decode_options.box_threshold + _EDGE
        for mine, others in (sides, sides[::-1]):
            sure = [one.points for one in mine if one.score > edge]
            match = match_regions(Polygons(tuple(sure), (False,) * len(sure)), [one.points for one in others], _ALIKE)
            if len(match.missed):
                return False
        return True

    def lost(self, before: Sequence[Prediction], after: Sequence[Prediction], truths: Sequence[Truth] | None) -> float:
        """Return by how much the h-mean fell; without truths, beside what was found before."""
        if truths is None:
            found, _ = _split(before)
            truths = [Polygons(tuple(one), (False,) * len(one)) for one in found]
        return self.score(truths, before).hmean - self.score(truths, after).hmean

    def no_prediction(self) -> Regions:
        """Return no regions."""
        return Regions(())

    def score(self, truths: Sequence[Truth], predictions: Sequence[Prediction]) -> DetectionScores:
        """See `inkmill.tasks.detection.metrics.score`; while training, with the best threshold for the regions."""
        found, scores = _split(predictions)
        threshold = self.section.box_threshold
        if threshold is None and truths:
            threshold = best_threshold(truths, found, scores)
        return score(truths, found, scores, threshold)

    def tuned(self, scores: Scores) -> Self:
        """Return the task with the threshold for regions that was best on the validation set."""
        assert isinstance(scores, DetectionScores)
        return type(self)(self.model, self.section.model_copy(update={"box_threshold": scores.threshold}))

    def prediction_row(self, truth: Truth, prediction: Prediction) -> tuple[Any, ...]:
        """Return how many regions there are, were found, right, missed, false and ignored."""
        (found,), _ = _split([prediction])
        match = match_regions(truth, found)
        return (
            len(truth.points),
            len(found),
            len(match.truth),
            len(match.missed),
            len(match.false),
            len(match.ignored),
        )

    def error(self, truth: Truth, prediction: Prediction) -> tuple[float, ...] | None:
        """Return how many regions were missed or false, and their share of all; None where there is none."""
        (found,), _ = _split([prediction])
        match = match_regions(truth, found)
        wrong = len(match.missed) + len(match.false)
        return (float(wrong), wrong / (wrong + len(match.truth))) if wrong else None

    def compare(self, truth: Truth, prediction: Prediction) -> str:
        """Return how many regions there are and were found."""
        (found,), _ = _split([prediction])
        match = match_regions(truth, found)
        cared = len(truth.points) - sum(truth.ignore)
        return f"{cared} texts, {len(match.truth)} found\n{len(match.missed)} missed, {len(match.false)} false"

    def worst_errors(
        self, truths: Sequence[Truth], predictions: Sequence[Prediction], limit: int
    ) -> list[tuple[str, list[int]]]:
        """Return the pictures with the most missed texts, and those with the most false regions."""
        found, _ = _split(predictions)
        matches = [match_regions(truth, one) for truth, one in zip(truths, found, strict=True)]
        groups = []
        for heading, counts in (
            ("Most texts missed", [len(match.missed) for match in matches]),
            ("Most false regions", [len(match.false) for match in matches]),
        ):
            worst = sorted((place for place, count in enumerate(counts) if count), key=lambda place: -counts[place])
            groups.append((heading, worst[: -(-limit // 2)]))
        return groups

    def draw(self, image: NDArray[np.uint8], truth: Truth, prediction: Prediction) -> NDArray[np.uint8]:
        """Return the picture with what was found (green), missed (red), false (orange) and ignored (grey)."""
        (found,), _ = _split([prediction])
        drawn = np.ascontiguousarray(image)
        if truth is None:
            draw_regions(drawn, found, _RIGHT)
            return drawn
        match = match_regions(truth, found)
        groups = (
            (_IGNORED, [points for points, skip in zip(truth.points, truth.ignore, strict=True) if skip]),
            (_RIGHT, [found[number] for number in match.found.tolist()]),
            (_FALSE, [found[number] for number in match.false.tolist()]),
            (_MISSED, [truth.points[number] for number in match.missed.tolist()]),
        )
        for colour, regions in groups:
            draw_regions(drawn, regions, colour)
        return drawn

    def card_rows(self) -> dict[str, str]:
        """Return how whole pictures are read."""
        section = self.section
        return {
            "pictures": f"short side {section.short_side}, long side at most {section.long_side} pixels",
            "regions count from": f"{self.decode_options.box_threshold:.2f} on",
        }

    def build(self, model: ModelSpec | None = None) -> Detector:
        """See Task.build."""
        from inkmill.tasks.detection.model import Detector

        return Detector(model or self.model, self.map_options, self.section.loss)


def _split(predictions: Sequence[Prediction]) -> tuple[list[list[NDArray[np.float32]]], list[NDArray[np.float64]]]:
    """Return the points and the scores of the regions of each picture."""
    some = [one for one in predictions if isinstance(one, Regions)]
    points = [[region.points for region in one.found] for one in some]
    return points, [np.array([region.score for region in one.found], np.float64) for one in some]
