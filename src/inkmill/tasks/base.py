"""What a task is: all that check, training, inference, export, compression and diagnosis know of what is read.

A task comes in two halves, so that inference needs no torch:

    Task        this file       NumPy   which samples can be used, targets to arrays, outputs to predictions, scores,
                                        and the task's own part of a model file's header
    TaskModel   tasks/model.py  torch   the network: targets on the device, loss, named outputs

One object lives through a run: `Task.from_data` settles it on the training data (for recognition: its characters),
`header` writes what was settled into the model file, and `Task.from_header` has it back wherever the file is read.

A new task needs a folder beside `recognition/`, one line in `tasks/__init__.py` and, where its labels come in files
of their own, a format in `data/formats`. No other room names a task: what it needs to know it asks through this file.

    targets of a batch  --truths-->  truths  --encode-->  arrays  --TaskModel.to_targets-->  tensors for the loss
    images  --TaskModel.outputs | ONNX Runtime-->  named arrays  --Decoder.decode-->  predictions
    truths, predictions  --score-->  Scores, whose `primary` figure says which of two models is better
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from inkmill.config.model import ModelSpec
from inkmill.data.pipeline.resize import Resize
from inkmill.data.sources.base import Source
from inkmill.data.types import Target
from inkmill.errors import ConfigError, InkmillError, ModelFileError

if TYPE_CHECKING:
    from inkmill.config.spec import Spec
    from inkmill.config.tasks import GpuSection
    from inkmill.data.jobs.check import SampleRules
    from inkmill.tasks.model import TaskModel

Say = Callable[[str], None]
"""Prints one line for the user."""

Truth = Any
"""What a model should answer for one image, normalised: a string, a tuple of class names, a list of regions."""

Outputs = Mapping[str, NDArray[Any]]
"""The outputs of a model for a batch, by the names that an exported graph has for them; B comes first in each shape."""


class Prediction(Protocol):
    """A model's answer for one image; each task has a frozen dataclass for it."""

    @property
    def key(self) -> str:
        """The path of the image where it came from one, else its position, else an empty string."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return plain values by name, without the key: the columns of `infer` and the fields of its JSON lines.

        Floats are confidences; at least one value is none, for by those two models are found to answer alike.
        """
        ...


class Scores(ABC):
    """The scores of one set. Every figure is a share in 0..1, so that each can be shown as a percentage.

    Attributes:
        samples: how many were compared.
    """

    samples: int

    @property
    def primary(self) -> float:
        """The figure that says which of two models is better; higher is better."""
        return next(iter(self.headline().values()))

    @abstractmethod
    def headline(self) -> dict[str, float]:
        """Return the few figures that are shown after each epoch, by name, in the order of `Task.figures`."""

    @abstractmethod
    def rank(self) -> tuple[float, ...]:
        """Return what makes one model better than another, larger first: the primary figure, then what breaks ties."""

    @abstractmethod
    def table(self) -> dict[str, float | None]:
        """Return the columns of the table that `evaluate` prints, by heading; None where a set does not define one."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return every figure by name, plain values for metrics.json; those of `headline` are among them."""


class Decoder(ABC):
    """Turns the outputs of a model into predictions, by one of a task's ways to choose among them.

    Attributes:
        needs: the names of the outputs that `decode` reads; a model is asked for no others.
        notes: how predictions are chosen, a few words each, where it is not the task's plain way.
    """

    needs: tuple[str, ...]
    notes: Sequence[str] = ()

    @abstractmethod
    def decode(self, outputs: Outputs, sizes: NDArray[np.int32] | None = None) -> Sequence[Prediction]:
        """Return the predictions of a batch of B images, with empty keys.

        Args:
            outputs: at least those of `needs`, finite numbers.
            sizes: int32 (B, 2), width and height of each picture before it was resized: predictions that are
                places in the picture are in its pixels. None where that is not known: they are in the input's pixels.
        """

    def limited_to(self, available: Collection[str], where: str) -> Decoder:
        """Return the decoder for a graph that gives the outputs `available` and no others.

        Args:
            available: names of outputs.
            where: the file, for the error.

        Raises:
            ConfigError: it cannot do without one of the others.
        """
        if missing := [name for name in self.needs if name not in available]:
            raise ConfigError(f"{where}: its graph does not give {missing[0]}, which is needed; export it once more")
        return self


@dataclass(frozen=True, slots=True)
class Output:
    """One output of an exported graph.

    Attributes:
        dtype: "float32" or "int32".
        axes: a name for each axis after the batch's, for people and for ONNX's dynamic axes: ("steps", "classes").
        optional: whether a graph may lack it; such an output is asked for by name only.
    """

    dtype: str
    axes: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class GraphProfile:
    """Other names under which a graph has a task's input and outputs, as other programs expect them.

    Attributes:
        input: name of the graph's input.
        outputs: the task's name for each output of the graph, by the graph's own.
        bgr: whether the input has three channels, blue first, whatever the model reads.
    """

    input: str
    outputs: Mapping[str, str]
    bgr: bool = False


class Task(ABC):
    """One task, settled on its data. Immutable; it is shared by threads and pickled into processes.

    Args:
        model: the `model` section that the network is built from; backbone and input are common to all tasks.

    Attributes:
        name: as in `spec.task`, in model files and in the registry.
        noun: what the model is, for sentences: "text reader".
        figures: the title of each of the scores' headline figures by name, the primary one first: what is compared,
            logged and drawn after each epoch.
        outputs: the outputs of the exported graph by name, in order. Those that are not optional come first.
        profiles: other ways to name them, by the value of `export.profile`.
        columns: what `prediction_row` gives, by name; predictions.csv of `evaluate` has them after set and key.
        prediction_fields: the keys of `Prediction.as_dict`.
        reads_on_its_side: whether a picture much higher than wide may hold something that lies on its side, so that it
            is read turned as well; needs `sureness`.
        folder_format: the label format that a folder without a label file is taken for where it can be; empty: none.
        large_pictures: pages show pictures large, for what `draw` draws into them.
    """

    name: ClassVar[str]
    noun: ClassVar[str]
    figures: ClassVar[Mapping[str, str]]
    outputs: ClassVar[Mapping[str, Output]]
    profiles: ClassVar[Mapping[str, GraphProfile]] = {}
    columns: ClassVar[tuple[str, ...]]
    prediction_fields: ClassVar[tuple[str, ...]]
    reads_on_its_side: ClassVar[bool] = False
    folder_format: ClassVar[str] = ""
    large_pictures: ClassVar[bool] = False

    def __init__(self, model: ModelSpec) -> None:
        self.model = model

    # Where a task comes from, and where it goes

    @classmethod
    @abstractmethod
    def from_data(cls, spec: Spec, sources: Sequence[Source], say: Say) -> Self:
        """Return the task settled on the training sets: which characters or classes there are.

        Args:
            spec: the resolved spec.
            sources: all training sets, before anything is left out or held out; targets only are read.
            say: prints one line.

        Raises:
            DataError: a set holds targets of another kind.
            ConfigError: the spec asks for something that this task does not have.
        """

    @classmethod
    @abstractmethod
    def from_header(cls, model: ModelSpec, part: Mapping[str, Any]) -> Self:
        """Return the task of a model file.

        Args:
            model: the header's `model` section.
            part: what `header` returned when the file was written; the file may be damaged or hostile.

        Raises:
            ValueError: the part is not one of this task (pydantic's ValidationError is a ValueError).
            InkmillError: it is, and what it says cannot be.
        """

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """Return the task's own part of a model file's header: plain JSON values, all that decoding needs."""

    def metadata(self) -> dict[str, str]:
        """Return what else goes into an ONNX file's metadata, for other programs that look for it there."""
        return {}

    # Which samples can be used

    @abstractmethod
    def rules(self) -> SampleRules:
        """Return what a sample must fulfil to be trained on (see `inkmill.data.jobs.check`)."""

    @property
    def resize(self) -> Resize:
        """How images are brought to the input size."""
        return input_resize(self.model)

    def repeats(self, source: Source) -> NDArray[np.float64] | None:
        """Return how often an epoch is to show each of N usable training samples, float64 (N,) >= 1; None: once."""
        return None

    @property
    def window(self) -> tuple[int, int] | None:
        """Height and width of the part of a picture that the model sees in training; None: whole inputs.

        For tasks whose `resize` is a `PageResize`: what is kept and read is larger than what is trained on.
        """
        return None

    # From targets to what the loss takes

    @property
    @abstractmethod
    def class_names(self) -> tuple[str, ...]:
        """One name for each class of the output layer, in order. Fine-tuning matches the rows of two models by them."""

    @property
    def head(self) -> str:
        """The kind of output layer; rows of the output layers of two models are only matched where it is the same."""
        return self.name

    @abstractmethod
    def truths(self, targets: Sequence[Target]) -> list[Truth]:
        """Return what a model should answer for each target of a batch, normalised.

        Raises:
            DataError: a target of another kind.
        """

    @abstractmethod
    def encode(self, truths: Sequence[Truth]) -> tuple[NDArray[Any], ...]:
        """Return the truths of a batch as arrays, which `TaskModel.to_targets` brings to the device.

        Raises:
            InkmillError: a truth that the model cannot give, such as an unknown character.
        """

    def beyond(self, truths: Sequence[Truth]) -> tuple[int, str]:
        """Return how many truths the model cannot give whatever it sees, and why, in a few words; (0, "") for none.

        Args:
            truths: of a test set.
        """
        return 0, ""

    def misfit(self, width: int, height: int) -> str:
        """Return why a picture of this size is most likely not what the model reads; empty where it may be."""
        return ""

    # From outputs to predictions

    def decoder(self, **options: Any) -> Decoder:
        """Return a decoder; without options the task's plain way to choose.

        Args:
            options: the task's own, as `inkmill.load` takes them.

        Raises:
            ConfigError: an option that the task or this model does not have.
        """
        if options:
            raise ConfigError(f"a {self.noun} takes no {next(iter(options))}")
        return self.plain_decoder()

    @abstractmethod
    def plain_decoder(self) -> Decoder:
        """Return the decoder that validation and export use."""

    def decoder_of(self, section: GpuSection) -> Decoder:
        """Return the decoder that a verb's section of the spec asks for.

        Raises:
            ConfigError: it asks for what this task or this model does not have.
        """
        if section.beam_width > 1 or section.lexicon:
            raise ConfigError(f"beam_width and lexicon are for text, and this model is a {self.noun}")
        return self.plain_decoder()

    def sureness(self, prediction: Prediction) -> float | None:
        """Return how sure an answer is, by which answers for one picture are compared; None where a task has none."""
        return None

    def check_outputs(self, outputs: Outputs, batch: int, where: str) -> None:
        """Refuse outputs of a graph that is not the one its header describes.

        Args:
            outputs: as ONNX Runtime gave them.
            batch: images of the batch.
            where: the file, for the error.

        Raises:
            ModelFileError: a wrong number of axes or images; tasks add what they know (classes out of range).
        """
        for name, array in outputs.items():
            if array.ndim != 1 + len(self.outputs[name].axes) or len(array) != batch:
                raise ModelFileError(f"{where}: its graph gives {name} of shape {array.shape}; export it once more")

    def is_tie(self, ours: Outputs, theirs: Outputs) -> bool:
        """Return whether two models answer differently for one image because classes are equally probable.

        Args:
            ours: all outputs of one model, B = 1.
            theirs: those of the other that the plain decoder needs.
        """
        return False

    def agree(self, ours: Prediction, theirs: Prediction) -> bool:
        """Return whether two models give the same answer for one image: confidences may differ."""
        return plain_answer(ours) == plain_answer(theirs)

    def lost(self, before: Sequence[Prediction], after: Sequence[Prediction], truths: Sequence[Truth] | None) -> float:
        """Return what predictions have lost beside others, in 0..1: right ones, or equal ones where no truth is known.

        It is counted and divided once: a loss of 1 in 100 is 0.01 then, and not a little more than a bound of it.
        """
        if truths is None:
            return sum(not self.agree(*pair) for pair in zip(before, after, strict=True)) / len(before)
        right = [sum(self.error(*pair) is None for pair in zip(truths, some, strict=True)) for some in (before, after)]
        return (right[0] - right[1]) / len(before)

    @abstractmethod
    def no_prediction(self) -> Prediction:
        """Return what counts as the answer for an image that cannot be decoded; it is right for no truth."""

    # Scores and reports

    @abstractmethod
    def score(self, truths: Sequence[Truth], predictions: Sequence[Prediction]) -> Scores:
        """Compare predictions with the truth.

        Raises:
            DataError: nothing to score, or the two sides differ in number.
        """

    @abstractmethod
    def prediction_row(self, truth: Truth, prediction: Prediction) -> tuple[Any, ...]:
        """Return the values of `columns` for one image."""

    @abstractmethod
    def error(self, truth: Truth, prediction: Prediction) -> tuple[float, ...] | None:
        """Return how bad a wrong answer is, larger is worse, to sort the error page by; None for a right one."""

    @abstractmethod
    def compare(self, truth: Truth, prediction: Prediction) -> str:
        """Return truth and answer for people, in two short lines."""

    def worst_errors(
        self, truths: Sequence[Truth], predictions: Sequence[Prediction], limit: int
    ) -> list[tuple[str, list[int]]]:
        """Return what the error page shows: headings, each with the positions of the images under it, worst first.

        Args:
            truths: of all images; among equal errors the first one is shown first.
            predictions: as many.
            limit: of images in all, about.
        """
        errors = [
            (error, position)
            for position, pair in enumerate(zip(truths, predictions, strict=True))
            if (error := self.error(*pair)) is not None
        ]
        errors.sort(key=lambda pair: [-part for part in pair[0]])
        shown = [position for _, position in errors[:limit]]
        return [(f"The {len(shown)} worst", shown)]

    def draw(self, image: NDArray[np.uint8], truth: Truth, prediction: Prediction) -> NDArray[np.uint8]:
        """Return a picture for the error page, uint8 (H, W, 3) RGB: with the places that the task is about drawn in.

        The truth is None where it is not known, as of pictures that are only read.
        """
        return image

    def described(self) -> str:
        """Return what the task was settled on, in a few words: "36 characters"; empty where there are no classes."""
        return f"{len(self.class_names):,} classes" if self.class_names else ""

    def card_rows(self) -> dict[str, str]:
        """Return what the model card says of the task's part of the header, by name."""
        return {}

    def card_sections(self) -> dict[str, list[str]]:
        """Return further sections of the model card: lines of Markdown by heading."""
        return {}

    def tuned(self, scores: Scores) -> Task:
        """Return the task as the file of a model with these validation scores is to have it, with thresholds say."""
        return self

    # The torch half

    @abstractmethod
    def build(self, model: ModelSpec | None = None) -> TaskModel:
        """Return a new network with fresh weights; imports torch.

        Args:
            model: another section than the task's own, such as one without published weights.

        Raises:
            ConfigError: an unknown backbone or head, or an input size that the network cannot take.
        """


def plain_answer(prediction: Prediction) -> str:
    """Return what can be equal or not of a prediction: everything but its confidences, as text.

    Raises:
        InkmillError: it holds numbers alone, so that any two of them would count as equal.
    """
    values = [value for value in prediction.as_dict().values() if not isinstance(value, float)]
    if not values:
        raise InkmillError(
            "the predictions of this task are numbers alone, which cannot be compared for equality: its `as_dict` "
            "needs a field that is not a float, such as the number rounded to what matters"
        )
    return str(values[0]) if len(values) == 1 else str(values)


def input_resize(model: ModelSpec) -> Resize:
    """Return how images are brought to the input size of `model`."""
    return Resize(
        height=model.input_height, width=model.input_width, channels=model.input_channel, mode=model.input_resize
    )
