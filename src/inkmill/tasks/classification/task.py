"""Classification: which of a list of classes an image shows, exactly one (`classification`) or any (`multilabel`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from inkmill.config.base import Section
from inkmill.config.model import ModelSpec
from inkmill.data.pipeline.targets import multi_hot
from inkmill.data.sources.base import Source
from inkmill.data.types import Labels, Target, Text
from inkmill.errors import ConfigError, DataError, ModelFileError
from inkmill.files import explain, read_data
from inkmill.tasks.base import Decoder, Output, Outputs, Prediction, Say, Scores, Task, Truth
from inkmill.tasks.classification.metrics import FIGURES, UNKNOWN, ClassificationScores, score
from inkmill.tasks.classification.rules import ClassRules
from inkmill.tasks.classification.spec import ClassificationSection, MultilabelSection, Pooling

if TYPE_CHECKING:
    from inkmill.config.spec import Spec
    from inkmill.tasks.classification.model import Classifier

PROBABILITIES = "probabilities"
MAX_CLASSES = 100_000
_SHOWN_CLASSES = 200


@dataclass(frozen=True, slots=True)
class Classes:
    """What a classifier says of one image.

    Attributes:
        labels: the class names; of exclusive classes the most probable one, else those at or above their thresholds.
        confidence: the probability of the most probable class.
        probabilities: float32 (C,), of each class in order.
        key: see `Prediction`.
    """

    labels: tuple[str, ...]
    confidence: float
    probabilities: NDArray[np.float32]
    key: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the labels, split by blanks, and the confidence."""
        return {"labels": " ".join(self.labels), "confidence": self.confidence}


class ClassDecoder(Decoder):
    """From probabilities to class names.

    Args:
        classes: their names.
        exclusive: whether an image has exactly one.
        thresholds: of each class; not looked at where classes are exclusive.
    """

    needs = (PROBABILITIES,)

    def __init__(self, classes: Sequence[str], exclusive: bool, thresholds: Sequence[float]) -> None:
        self._classes, self._exclusive = tuple(classes), exclusive
        self._thresholds = np.asarray(thresholds, np.float32)

    def decode(self, outputs: Outputs, sizes: NDArray[np.int32] | None = None) -> list[Classes]:
        """See Decoder.decode."""
        rows = np.asarray(outputs[PROBABILITIES], np.float32)
        best = rows.argmax(axis=1)
        shown = rows >= self._thresholds
        if self._exclusive:
            shown = np.arange(rows.shape[1]) == best[:, None]
        return [
            Classes(tuple(self._classes[i] for i in np.flatnonzero(mask)), float(row[top]), row)
            for mask, row, top in zip(shown, rows, best.tolist(), strict=True)
        ]


class LabelReader:
    """From the targets of samples to class names and label rows.

    Args:
        classes: C names, in the order of the model's outputs.
        exclusive: whether an image has exactly one.
        separators: characters that split a text into class names; empty where a text is one name.
    """

    def __init__(self, classes: Sequence[str], exclusive: bool, separators: str = "") -> None:
        self.classes, self.exclusive, self.separators = tuple(classes), exclusive, separators
        self.column = {name: number for number, name in enumerate(self.classes)}

    def names_of(self, target: Target) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the classes that a target names, and those that it calls unknown.

        Raises:
            DataError: the target is regions.
        """
        if isinstance(target, Labels):
            return target.names, target.unknown
        if isinstance(target, Text):
            return split_names(target.value, self.separators), ()
        raise DataError(f"a classifier learns from class names, and a sample has {type(target).__name__.lower()}")

    def rows(self, targets: Sequence[Target]) -> NDArray[np.int8]:
        """Return int8 (B, C): 1 present, 0 absent, -1 unknown.

        Raises:
            DataError: a class that is not in the list, or a target that is regions.
        """
        labels = [Labels(*self.names_of(target)) for target in targets]
        return multi_hot(labels, self.classes).astype(np.int8)


class ClassHeader(Section):
    """What a model file says of a classifier, besides its `model` section."""

    classes: list[str] = Field(min_length=1, max_length=MAX_CLASSES)
    """Class names, in the order of the outputs."""
    thresholds: list[float] = Field(default_factory=list)
    """From which probability on a class is said to be present; empty: 0.5 each."""
    pooling: Pooling = "avg"
    """How the backbone's map becomes one vector."""


class ClassificationTask(Task):
    """Classification, settled on its classes.

    Args:
        model: the `model` section.
        classes: class names, in order.
        thresholds: of each class; by default 0.5.
        section: pooling, dropout and loss.
        counts: how many training samples show each class, and of how many it is known; None outside of training.
    """

    exclusive: ClassVar[bool]
    section_class: ClassVar[type[ClassificationSection] | type[MultilabelSection]]
    outputs: ClassVar[Mapping[str, Output]] = {PROBABILITIES: Output("float32", ("classes",))}
    columns = ("truth", "labels", "confidence", "right")
    prediction_fields = ("labels", "confidence")
    folder_format = "class_folders"

    def __init__(
        self,
        model: ModelSpec,
        classes: Sequence[str],
        thresholds: Sequence[float] = (),
        section: ClassificationSection | MultilabelSection | None = None,
        counts: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    ) -> None:
        super().__init__(model)
        self.section = section or self.section_class()
        self.classes = tuple(classes)
        self.thresholds = tuple(thresholds) or (0.5,) * len(self.classes)
        self.counts = counts
        separators = self.section.separators if isinstance(self.section, MultilabelSection) else ""
        self.labels = LabelReader(self.classes, self.exclusive, separators)

    @classmethod
    def from_data(cls, spec: Spec, sources: Sequence[Source], say: Say) -> Self:
        """Return the task with the classes of its section's classes_file, else of all training labels."""
        section = getattr(spec, cls.name)
        separators = section.separators if isinstance(section, MultilabelSection) else ""
        reader = LabelReader((), cls.exclusive, separators)
        shown: dict[str, int] = {}
        unknown: dict[str, int] = {}
        samples = 0
        for source in sources:
            for index in range(len(source)):
                samples += 1
                for counted, some in zip((shown, unknown), reader.names_of(source.target(index)), strict=True):
                    for name in some:
                        counted[name] = counted.get(name, 0) + 1
        classes = read_classes(section.classes_file) if section.classes_file else sorted(shown.keys() | unknown.keys())
        if not classes:
            raise DataError("no training label names a class: there is nothing to learn")
        say(f"classes{'' if section.classes_file else ' from the training labels'}: {len(classes):,}")
        positives = np.array([shown.get(name, 0) for name in classes], np.int64)
        known = samples - np.array([unknown.get(name, 0) for name in classes], np.int64)
        return cls(spec.model, classes, (), section, (positives, known))

    @classmethod
    def from_header(cls, model: ModelSpec, part: Mapping[str, Any]) -> Self:
        """See Task.from_header."""
        header = ClassHeader.model_validate(part)
        if len(set(header.classes)) != len(header.classes):
            raise ValueError("a class comes twice")
        if header.thresholds and len(header.thresholds) != len(header.classes):
            raise ValueError(f"{len(header.thresholds)} thresholds for {len(header.classes)} classes")
        return cls(model, header.classes, header.thresholds, cls.section_class(pooling=header.pooling))

    def header(self) -> dict[str, Any]:
        """Return classes, thresholds and pooling; see ClassHeader."""
        return {
            "classes": list(self.classes),
            "thresholds": list(self.thresholds),
            "pooling": self.section.pooling,
        }

    def metadata(self) -> dict[str, str]:
        """Return the class names, one a line."""
        return {"classes": "\n".join(self.classes)}

    def rules(self) -> ClassRules:
        """See Task.rules."""
        return ClassRules(self.resize, self.labels)

    def repeats(self, source: Source) -> NDArray[np.float64] | None:
        """Return for each sample the factor of its rarest class; see `ClassesSection.balance`."""
        if not self.section.balance:
            return None
        shown = self.labels.rows(source.described(range(len(source)))[1]) == 1
        counts = shown.sum(axis=0)
        factors = (counts.max(initial=1) / np.maximum(counts, 1)) ** self.section.balance
        repeats: NDArray[np.float64] = np.where(shown, factors, 1.0).max(axis=1, initial=1.0)
        return repeats

    @property
    def class_names(self) -> tuple[str, ...]:
        """The class names."""
        return self.classes

    def truths(self, targets: Sequence[Target]) -> list[Truth]:
        """Return a label row (C,) for each target, int8: 1 present, 0 absent, -1 unknown."""
        return list(self.labels.rows(targets))

    def encode(self, truths: Sequence[Truth]) -> tuple[NDArray[np.float32], ...]:
        """Return the label rows as float32 (B, C)."""
        return (np.asarray(truths, np.float32).reshape(len(truths), len(self.classes)),)

    def plain_decoder(self) -> ClassDecoder:
        """Return the decoder by the file's thresholds."""
        return ClassDecoder(self.classes, self.exclusive, self.thresholds)

    def check_outputs(self, outputs: Outputs, batch: int, where: str) -> None:
        """Refuse a number of classes that is not the header's, too."""
        super().check_outputs(outputs, batch, where)
        if outputs[PROBABILITIES].shape[1] != len(self.classes):
            raise ModelFileError(
                f"{where}: its graph gives {outputs[PROBABILITIES].shape[1]} classes, its header has "
                f"{len(self.classes)}; export it once more"
            )

    def no_prediction(self) -> Classes:
        """Return no class, of probability 0."""
        return Classes((), 0.0, np.zeros(len(self.classes), np.float32))

    def score(self, truths: Sequence[Truth], predictions: Sequence[Prediction]) -> ClassificationScores:
        """See `inkmill.tasks.classification.metrics.score`."""
        rows = [one.probabilities for one in predictions if isinstance(one, Classes)]
        classes = len(self.classes)
        labels = np.asarray(truths, np.int8).reshape(len(truths), classes)
        probabilities = np.asarray(rows, np.float32).reshape(len(rows), classes)
        # A file's thresholds are used as they are; while training each validation finds its own.
        thresholds = self.thresholds if self.counts is None else None
        return score(labels, probabilities, self.classes, self.exclusive, thresholds)

    def prediction_row(self, truth: Truth, prediction: Prediction) -> tuple[Any, ...]:
        """Return true and predicted class names, the confidence, and whether all known labels are right."""
        assert isinstance(prediction, Classes)
        right = self.error(truth, prediction) is None
        return " ".join(self._names(truth)), " ".join(prediction.labels), f"{prediction.confidence:.4f}", int(right)

    def error(self, truth: Truth, prediction: Prediction) -> tuple[float, ...] | None:
        """Return how many labels are wrong, then how sure the worst of them was; None where all known are right."""
        assert isinstance(prediction, Classes)
        said = np.isin(np.arange(len(self.classes)), [self.labels.column[name] for name in prediction.labels])
        wrong = (said != (truth == 1)) & (truth != UNKNOWN)
        if not wrong.any():
            return None
        surest = np.where(said, prediction.probabilities, 1 - prediction.probabilities)[wrong].max()
        return float(wrong.sum()), float(surest)

    def compare(self, truth: Truth, prediction: Prediction) -> str:
        """Return true and predicted class names."""
        assert isinstance(prediction, Classes)
        told = ", ".join(prediction.labels) or "nothing"
        return f"is {', '.join(self._names(truth)) or 'nothing'}\npredicted {told} ({prediction.confidence:.2f})"

    def worst_errors(
        self, truths: Sequence[Truth], predictions: Sequence[Prediction], limit: int
    ) -> list[tuple[str, list[int]]]:
        """Return for each class its surest false positives and false negatives; see Task.worst_errors.

        Classes with more mistakes come first; each group has at least 3 images, so that many classes fill `limit`.
        """
        labels = np.asarray(truths, np.int8).reshape(len(truths), len(self.classes))
        rows = [one for one in predictions if isinstance(one, Classes)]
        probabilities = np.array([one.probabilities for one in rows]).reshape(labels.shape)
        said = np.array([np.isin(self.classes, one.labels) for one in rows]).reshape(labels.shape)
        # 1. By class: said and wrong, by probability; missed, by how improbable it was said to be.
        groups: list[tuple[int, str, list[int]]] = []
        for column, name in enumerate(self.classes):
            sure = probabilities[:, column]
            false = np.flatnonzero(said[:, column] & (labels[:, column] == 0))
            missed = np.flatnonzero(~said[:, column] & (labels[:, column] == 1))
            mistakes = len(false) + len(missed)
            for title, found, order in (
                ("false positives", false, -sure[false]),
                ("false negatives", missed, sure[missed]),
            ):
                if len(found):
                    worst = found[np.argsort(order, kind="stable")].tolist()
                    groups.append((mistakes, f"{name}: {title} ({len(found):,})", worst))
        # 2. As many groups as fit, the classes with most mistakes first.
        groups.sort(key=lambda group: -group[0])
        each = max(3, limit // max(1, len(groups)))
        return [(title, worst[:each]) for _, title, worst in groups[: max(1, limit // each)]]

    def _names(self, truth: Truth) -> list[str]:
        return [self.classes[i] for i in np.flatnonzero(truth == 1)]

    def card_rows(self) -> dict[str, str]:
        """Return how many classes there are."""
        return {"classes": f"{len(self.classes):,}"}

    def card_sections(self) -> dict[str, list[str]]:
        """Return the classes with their thresholds, of a long list the first few hundred."""
        more = len(self.classes) - _SHOWN_CLASSES
        lines = [
            f"- {name}" if self.exclusive else f"- {name} (from {threshold:.3f} on)"
            for name, threshold in zip(self.classes[:_SHOWN_CLASSES], self.thresholds, strict=False)
        ]
        return {"Classes": lines + ([f"- … and {more:,} more"] if more > 0 else [])}

    def tuned(self, scores: Scores) -> Self:
        """Return the task with the thresholds that gave each class its best F1 on the validation samples."""
        assert isinstance(scores, ClassificationScores)
        thresholds = [one.threshold for one in scores.per_class]
        return type(self)(self.model, self.classes, thresholds, self.section, self.counts)

    def build(self, model: ModelSpec | None = None) -> Classifier:
        """See Task.build."""
        import torch

        from inkmill.tasks.classification.losses import make_loss, positive_weights
        from inkmill.tasks.classification.model import Classifier

        section = self.section
        smoothing = section.smoothing if isinstance(section, ClassificationSection) else 0.0
        weight = None
        if section.loss == "bce" and self.counts is not None:
            positives, known = self.counts
            weight = positive_weights(torch.from_numpy(positives), torch.from_numpy(known))
        return Classifier(
            model or self.model,
            len(self.classes),
            self.exclusive,
            section.pooling,
            section.dropout,
            make_loss(section.loss, self.exclusive, smoothing),
            weight,
            (section.mixup, section.cutmix),
        )


class Classification(ClassificationTask):
    """Exactly one class an image."""

    name = "classification"
    noun = "classifier"
    figures = FIGURES[True]
    exclusive = True
    section_class = ClassificationSection


class Multilabel(ClassificationTask):
    """Any number of classes an image."""

    name = "multilabel"
    noun = "multi-label classifier"
    figures = FIGURES[False]
    exclusive = False
    section_class = MultilabelSection


def split_names(text: str, separators: str) -> tuple[str, ...]:
    """Return the class names in a text, each once, in order; with no separators the text is one name."""
    if not separators:
        return (text.strip(),) if text.strip() else ()
    for separator in separators[1:]:
        text = text.replace(separator, separators[0])
    return tuple(dict.fromkeys(name for part in text.split(separators[0]) if (name := part.strip())))


def read_classes(path: str) -> list[str]:
    """Return the class names of a file, one a line, UTF-8; blank lines are passed over.

    Raises:
        ConfigError: it cannot be read, is not UTF-8, or names a class twice.
    """
    try:
        lines = read_data(path, 1 << 28, pipes=True).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(f"classes_file {path}: cannot be read ({explain(error)})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"classes_file {path}: not UTF-8; save it as UTF-8, one class a line") from error
    names = [line.strip() for line in lines if line.strip()]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"classes_file {path}: the class {twice!r} comes twice; name each class once")
    return names
