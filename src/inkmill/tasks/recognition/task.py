"""Text recognition: one line of text in a picture, read as a string."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from rapidfuzz.distance import Levenshtein

from inkmill.config.base import Section
from inkmill.config.model import ModelSpec
from inkmill.data.sources.base import Source
from inkmill.data.types import Target, Text, Texts
from inkmill.errors import DataError, ModelFileError
from inkmill.tasks.base import GraphProfile, Output, Outputs, Prediction, Say, Task, Truth
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import make_codec
from inkmill.tasks.recognition.decoder import ALL, BEST, PADDLE_INPUT, PADDLE_OUTPUT, Reading, TextDecoder, read_words
from inkmill.tasks.recognition.metrics import RecognitionScores, score
from inkmill.tasks.recognition.normalise import Normaliser
from inkmill.tasks.recognition.rules import TextRules

if TYPE_CHECKING:
    from inkmill.config.spec import Spec
    from inkmill.config.tasks import GpuSection
    from inkmill.tasks.recognition.model import Recognizer

MAX_CHARACTERS = 200_000
"""More than Unicode has assigned."""
TIE = 1e-4
"""Two classes whose probabilities are nearer than this: rounding may make either the best. The order of a sum changes a
probability in fp32 by up to some 1e-5, and among many images one meets such a step."""
_SHOWN_CHARACTERS = 300
_SHOWN_UNKNOWN = 10
_PAGE_HEIGHTS = 16  # times as high as the input: 512 pixels where that is 32
_LINE_SHAPE = 3  # a picture wider than this times its height is a line, however large


class RecognitionHeader(Section):
    """What a model file says of a text reader, besides its `model` section."""

    charset: list[str] = Field(min_length=1, max_length=MAX_CHARACTERS)
    """The characters, in class order, without the decoder's own classes."""
    normalise: list[str] = Field(default_factory=list)
    """Rule sets that were applied to the training labels, after NFC."""
    max_label_length: int = Field(gt=0, le=4096)
    """Longest text the reader was made for."""


class Recognition(Task):
    """Text recognition, settled on its characters.

    Args:
        model: the `model` section; `prediction` chooses the head and with it the codec.
        charset: the characters.
        max_label_length: longest text in characters.
        normalise: names of the rule sets that are applied to labels, after NFC.
    """

    name = "recognition"
    noun = "text reader"
    figures: ClassVar[Mapping[str, str]] = {"word_accuracy": "word accuracy", "cer": "CER"}
    # The first two are TAO OCRNet's, so nvOCDR and TAO Deploy take our files.
    outputs: ClassVar[Mapping[str, Output]] = {
        "output_id": Output("int32", ("steps",)),
        "output_prob": Output("float32", ("steps",)),
        ALL: Output("float32", ("steps", "classes"), optional=True),
    }
    profiles: ClassVar[Mapping[str, GraphProfile]] = {
        "paddle": GraphProfile(PADDLE_INPUT, {PADDLE_OUTPUT: ALL}, bgr=True)
    }
    columns = ("truth", "text", "confidence", "distance")
    prediction_fields = ("text", "confidence")
    reads_on_its_side = True

    def __init__(
        self, model: ModelSpec, charset: Charset, max_label_length: int, normalise: Sequence[str] = ()
    ) -> None:
        super().__init__(model)
        self.charset, self.max_label_length = charset, max_label_length
        self.normaliser = Normaliser(normalise)
        self.codec = make_codec(model.prediction, charset, max_label_length)

    @classmethod
    def from_data(cls, spec: Spec, sources: Sequence[Source], say: Say) -> Self:
        """Return the task with the characters of dataset.character_list_file, else of all training labels."""
        listed = spec.dataset.character_list_file
        if listed:
            charset = Charset.from_file(listed)
            for line in charset.notes:
                say(f"{listed}: {line}")
        else:
            normaliser = Normaliser(spec.dataset.normalise)
            charset = Charset.from_texts(normaliser.apply(text) for source in sources for text in _texts(source))
            say(f"characters from the training labels: {len(charset)}")
        return cls(spec.model, charset, spec.dataset.max_label_length, spec.dataset.normalise)

    @classmethod
    def from_header(cls, model: ModelSpec, part: Mapping[str, Any]) -> Self:
        """See Task.from_header."""
        header = RecognitionHeader.model_validate(part)
        return cls(model, Charset(tuple(header.charset)), header.max_label_length, header.normalise)

    def header(self) -> dict[str, Any]:
        """Return characters, normalisation and longest text; see RecognitionHeader."""
        return {
            "charset": list(self.charset.chars),
            "normalise": list(self.normaliser.rule_names),
            "max_label_length": self.max_label_length,
        }

    def metadata(self) -> dict[str, str]:
        """Return the characters, one a line, where RapidOCR and PaddleOCR look for them."""
        return {"character": "\n".join(self.charset.chars)}

    def rules(self) -> TextRules:
        """See Task.rules; without torch widths go unchecked."""
        return TextRules(self.resize, self.codec, self.normaliser, self._capacity())

    def _capacity(self) -> Callable[[int], int] | None:
        """Return the function from input width to the model's time steps, None without torch."""
        try:
            import torch
        except ModuleNotFoundError:  # `check` runs on the base install
            return None
        with torch.device("meta"):  # shapes without weights
            model = self.build(self.model.model_copy(update={"backbone_pretrained": False}))
        return lambda width: model.time_steps(self.resize.rows(width), width)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The decoder's own classes in brackets, then the characters."""
        return self.codec.class_names

    @property
    def head(self) -> str:
        """CTC, Attn or Slots."""
        return self.codec.prediction

    def truths(self, targets: Sequence[Target]) -> list[str]:
        """Return the labels, normalised."""
        return self.normaliser.apply_all(_values(targets))

    def beyond(self, truths: Sequence[str]) -> tuple[int, str]:
        """Count the labels that hold characters outside the charset, or are longer than the reader allows."""
        strange = [text for text in truths if any(char not in self.charset for char in text)]
        long = [text for text in truths if len(text) > self.max_label_length]
        both = {*strange, *long}
        reasons = []
        if strange:
            counts = Counter(char for text in strange for char in text if char not in self.charset)
            shown = " ".join(map(repr, sorted(counts, key=lambda char: (-counts[char], char))[:_SHOWN_UNKNOWN]))
            more = ", ..." if len(counts) > _SHOWN_UNKNOWN else ""
            reasons.append(f"{len(strange):,} hold characters that it does not know ({shown}{more})")
        if long:
            reasons.append(f"{len(long):,} are longer than its {self.max_label_length} characters")
        return sum(text in both for text in truths), " and ".join(reasons)

    def misfit(self, width: int, height: int) -> str:
        """Say so of a picture that is many times as high as the input, and not the shape of a line."""
        if height < _PAGE_HEIGHTS * self.model.input_height or width > _LINE_SHAPE * height:
            return ""
        return f"{width}x{height} pixels look like a whole page or photo, and this model reads one line of text"

    def encode(self, truths: Sequence[str]) -> tuple[NDArray[np.int64], ...]:
        """Return class ids (B, L), padded with 0, and lengths (B,), both int64; see `Codec.encode`."""
        return self.codec.encode(truths)

    def decoder(self, **options: Any) -> TextDecoder:
        """Return a decoder; options are `beam_width` (1 is greedy) and `words`, the only texts that may be read."""
        beam_width, words = options.pop("beam_width", 1), options.pop("words", None)
        if options:
            super().decoder(**options)
        return TextDecoder(self.codec, beam_width, words, self.normaliser)

    def plain_decoder(self) -> TextDecoder:
        """Return the greedy decoder."""
        return TextDecoder(self.codec)

    def decoder_of(self, section: GpuSection) -> TextDecoder:
        """Return the decoder that `beam_width` and `lexicon` ask for."""
        words: Iterable[str] | None = read_words(section.lexicon) if section.lexicon else None
        return self.decoder(beam_width=section.beam_width, words=words)

    def sureness(self, prediction: Prediction) -> float:
        """Return the mean confidence of a character (geometric): a long text is not less sure for being long."""
        assert isinstance(prediction, Reading)
        return float(prediction.confidence ** (1 / max(1, len(prediction.text))))

    def check_outputs(self, outputs: Outputs, batch: int, where: str) -> None:
        """Refuse classes that the header does not know, too."""
        super().check_outputs(outputs, batch, where)
        ids = outputs.get("output_id")
        if ids is not None and ids.size and not (ids.min() >= 0 and ids.max() < self.codec.num_classes):
            raise ModelFileError(f"{where}: its graph gives classes that its header does not know")
        if ALL in outputs and outputs[ALL].shape[2] != self.codec.num_classes:
            raise ModelFileError(f"{where}: its graph gives {ALL} of shape {outputs[ALL].shape}; export it once more")

    def is_tie(self, ours: Outputs, theirs: Outputs) -> bool:
        """Return whether, at the first step that differs, both classes are equally probable (within TIE) for `ours`."""
        other = theirs[ALL].argmax(axis=2) if ALL in theirs else theirs[BEST[0]]
        step = int(np.argmax(ours[BEST[0]][0] != other[0]))
        probable, classes = ours[ALL][0, step], (ours[BEST[0]][0, step], other[0, step])
        return bool(abs(probable[classes[0]] - probable[classes[1]]) <= TIE)

    def no_prediction(self) -> Reading:
        """Return the empty text with confidence 0."""
        return Reading("", 0.0)

    def score(self, truths: Sequence[Truth], predictions: Sequence[Prediction]) -> RecognitionScores:
        """See `inkmill.tasks.recognition.metrics.score`."""
        return score(truths, [prediction.text for prediction in predictions if isinstance(prediction, Reading)])

    def prediction_row(self, truth: Truth, prediction: Prediction) -> tuple[Any, ...]:
        """Return truth, text, confidence and the number of edits between the texts."""
        assert isinstance(prediction, Reading)
        distance = Levenshtein.distance(truth, prediction.text)
        return truth, prediction.text, f"{prediction.confidence:.4f}", distance

    def error(self, truth: Truth, prediction: Prediction) -> tuple[float, ...] | None:
        """Return the edits, then the confidence: a sure mistake is worse than a doubtful one."""
        assert isinstance(prediction, Reading)
        distance = Levenshtein.distance(truth, prediction.text)
        return (distance, prediction.confidence) if distance else None

    def compare(self, truth: Truth, prediction: Prediction) -> str:
        """Return both texts and the confidence."""
        assert isinstance(prediction, Reading)
        return f"{truth!r}\nread as {prediction.text!r} ({prediction.confidence:.2f})"

    def described(self) -> str:
        """Return how many characters there are."""
        return f"{len(self.charset)} characters"

    def card_rows(self) -> dict[str, str]:
        """Return the longest text and how many characters there are."""
        return {"longest text": f"{self.max_label_length} characters", "characters": f"{len(self.charset):,}"}

    def card_sections(self) -> dict[str, list[str]]:
        """Return the characters, of a long list the first few hundred."""
        chars = "".join(self.charset.chars)
        more = len(chars) - _SHOWN_CHARACTERS
        shown = chars[:_SHOWN_CHARACTERS] + (f" … and {more:,} more" if more > 0 else "")
        return {"Characters": ["````", shown, "````"]}

    def build(self, model: ModelSpec | None = None) -> Recognizer:
        """See Task.build."""
        from inkmill.tasks.recognition.model import build_recognizer

        return build_recognizer(model or self.model, self.codec.num_classes, self.max_label_length)


def _values(targets: Sequence[Target]) -> list[str]:
    """Return the strings of targets, all of which are text."""
    if isinstance(targets, Texts):
        return targets.values
    texts = [target.value for target in targets if isinstance(target, Text)]
    if len(texts) != len(targets):
        kind = next(type(target).__name__.lower() for target in targets if not isinstance(target, Text))
        raise DataError(f"a text reader learns from texts, and a sample has {kind} as its target")
    return texts


def _texts(source: Source) -> Iterator[str]:
    """Yield the texts of a set; raises DataError where it holds something else."""
    for index in range(len(source)):
        target = source.target(index)
        if not isinstance(target, Text):
            raise DataError(
                f"{source.name}: {source.key(index)} has {type(target).__name__.lower()}; a text reader learns from "
                "texts"
            )
        yield target.value
