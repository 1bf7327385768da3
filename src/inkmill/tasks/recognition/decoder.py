"""From a model's output to texts: greedy, by beam search, or as the best of a list of words.

Whatever chooses the text, its confidence is the same number: the product of the probabilities of its characters, for
CTC each at the first frame of its run, in the text's best alignment. A greedy reading is its own best alignment, so
where the ways agree on a text they agree on its confidence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from inkmill.errors import ConfigError
from inkmill.files import explain
from inkmill.tasks.base import Decoder, Outputs
from inkmill.tasks.recognition.codecs import Codec, CtcCodec
from inkmill.tasks.recognition.ctc import beam_search, first_frames, log_probabilities, text_log_probability
from inkmill.tasks.recognition.normalise import Normaliser

SHORTLIST = 32
"""Words nearest to the greedy reading that are scored exactly. On 673 scene words, 594 in the list, 16 gave 78.5 %,
32 79.1 and 64 79.2 right; the nearest word alone 68.1."""
MAX_LEXICON_BYTES = 64 << 20

BEST = ("output_id", "output_prob")
"""The outputs with the best class of each step, int32 (B, S), and its probability, float32 (B, S)."""
ALL = "probabilities"
"""The output with the probability of every class at every step, float32 (B, S, K)."""
PADDLE_INPUT, PADDLE_OUTPUT = "x", "softmax"
"""What PaddleOCR and RapidOCR call the images and the probabilities."""

Readings = tuple[list[str], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader says of one image.

    Attributes:
        text: the characters.
        confidence: product of the probabilities of the emitted characters, 0..1; 0 for an empty text.
        key: the path of the image where it came from one, else its position.
    """

    text: str
    confidence: float
    key: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return text and confidence, the latter with four digits."""
        return {"text": self.text, "confidence": round(float(self.confidence), 4)}


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """The characters of one image and where they stand.

    Attributes:
        text: N characters.
        probabilities: float32 (N,), 0..1.
        starts: float32 (N,), where each character's run of steps begins, as a share of the input's width, 0..1.
        ends: float32 (N,), where it ends.
    """

    text: str
    probabilities: NDArray[np.float32]
    starts: NDArray[np.float32]
    ends: NDArray[np.float32]


class TextDecoder(Decoder):
    """Turns the output of a model into texts and confidences.

    Args:
        codec: the model's.
        beam_width: prefixes that the search pursues; 1 is greedy. CTC alone has a search.
        words: the only texts that may come out; none leaves the choice free.
        normaliser: of the labels that the model learned, for the words; by default NFC.

    Attributes:
        wants_all: whether it needs the probability of every class, and not of the best alone.
        needs, notes: see Decoder.
        free: whether it is the greedy reading, without a list of words.

    Raises:
        ConfigError: a beam for another head than CTC, or no word that the model could write.
    """

    def __init__(
        self,
        codec: Codec,
        beam_width: int = 1,
        words: Iterable[str] | None = None,
        normaliser: Normaliser | None = None,
    ) -> None:
        if not isinstance(beam_width, int) or beam_width < 1:
            raise ConfigError(f"beam_width={beam_width}: expected a whole number from 1 on")
        self.codec, self.beam_width = codec, beam_width
        is_ctc = isinstance(codec, CtcCodec)
        if beam_width > 1 and not is_ctc:
            raise ConfigError(f"beam_width={beam_width}: beam search is for CTC, and this model has {codec.prediction}")
        self._lexicon = None if words is None else Lexicon(words, codec, normaliser or Normaliser([]))
        self.notes = [f"beam of {beam_width}"] if beam_width > 1 and words is None else []
        if self._lexicon is not None:
            dropped = f" ({self._lexicon.left_out:,} more that it cannot write)" if self._lexicon.left_out else ""
            self.notes.append(f"one of {len(self._lexicon.words):,} words{dropped}")
        self.free = beam_width <= 1 and words is None
        self.wants_all = is_ctc and not self.free
        self.needs = (ALL,) if self.wants_all else BEST

    def limited_to(self, available: Collection[str], where: str) -> TextDecoder:
        """See Decoder.limited_to; a lexicon does without all probabilities: the word with the fewest edits."""
        if self.beam_width > 1 and ALL not in available:
            raise ConfigError(
                f"{where}: a beam needs the probability of every class, and this file gives the best alone; "
                "export it with export.probabilities=true"
            )
        limited = copy(self)
        limited.wants_all = self.wants_all and ALL in available
        limited.needs = (ALL,) if limited.wants_all or not set(BEST) <= set(available) else BEST
        return limited

    def decode(self, outputs: Outputs, sizes: NDArray[np.int32] | None = None) -> list[Reading]:
        """Return a reading for each image; see Decoder.decode."""
        if ALL in self.needs:
            texts, confidences = self.all(outputs[ALL])
        else:
            texts, confidences = self.best(*(outputs[name] for name in BEST))
        return list(map(Reading, texts, confidences.tolist()))

    def located(self, outputs: Outputs) -> list[Located]:
        """Return the greedy text of each image with the place of every character: the columns of CTC's runs.

        Raises:
            ConfigError: another head than CTC, whose steps are no columns.
        """
        if not isinstance(self.codec, CtcCodec):
            raise ConfigError(
                f"where characters stand is known of a CTC head, and this model has {self.codec.prediction}"
            )
        if ALL in self.needs:
            ids, probabilities = outputs[ALL].argmax(axis=2), outputs[ALL].max(axis=2)
        else:
            ids, probabilities = (outputs[name] for name in BEST)
        found = []
        for row, (text, starts, ends) in zip(probabilities, self.codec.runs(ids), strict=True):
            share = np.float32(1 / len(row))
            found.append(Located(text, row[starts].astype(np.float32), starts * share, ends * share))
        return found

    def best(self, ids: NDArray[Any], probabilities: NDArray[Any]) -> Readings:
        """Return texts and confidences from the best class of each step, (B, S), and its probability, (B, S)."""
        texts, confidences = self.codec.decode(ids, probabilities)
        return (texts, confidences) if self._lexicon is None else self._lexicon.nearest(texts, confidences)

    def all(self, probabilities: NDArray[Any]) -> Readings:
        """Return texts and confidences from the probability of every class at every step, (B, S, K)."""
        if not self.wants_all or not len(probabilities):
            return self.best(probabilities.argmax(axis=2), probabilities.max(axis=2))
        log_probs = log_probabilities(probabilities)
        if self._lexicon is not None:
            ids, lengths = self._lexicon.most_probable(log_probs)
        else:
            ids, lengths = beam_search(log_probs, self.beam_width)
        return self._written(log_probs, ids, lengths)

    def _written(self, log_probs: NDArray[np.float64], ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> Readings:
        ids = ids[:, : max(int(lengths.max()), 1)]
        first = first_frames(log_probs, ids, lengths)
        rows = np.arange(len(ids))[:, None]
        emitted = np.where(first >= 0, log_probs[rows, first, ids], 0.0).sum(axis=1)
        names = self.codec.class_names
        texts = ["".join(names[i] for i in row[:n]) for row, n in zip(ids.tolist(), lengths.tolist(), strict=True)]
        fits = (lengths > 0) & (self.codec.required_steps(texts) <= log_probs.shape[1])
        return texts, np.where(fits, np.exp(emitted), 0.0).astype(np.float32)


class Lexicon:
    """The words that a reading may be.

    Args:
        words: the words; repeats do no harm.
        codec: the model's; words that it cannot write are left out.
        normaliser: what is done to the words first.

    Attributes:
        words: those that are left.
        left_out: how many hold a character that the model does not know, or are too long for it.

    Raises:
        ConfigError: none is left, or `words` is something else than texts.
    """

    def __init__(self, words: Iterable[str], codec: Codec, normaliser: Normaliser) -> None:
        if isinstance(words, str | bytes | Path):  # whose parts would be words of one letter
            raise ConfigError(f"words={str(words)[:40]!r}: expected a list of texts; read_words(PATH) reads a file")
        given = list(words)
        if odd := [word for word in given if not isinstance(word, str)]:
            raise ConfigError(f"words: {odd[0]!r} is no text; expected a list of texts")
        unique = list(dict.fromkeys(normaliser.apply_all([word for word in given if word])))
        fits = [word for word in unique if len(word) <= codec.max_label_length and not codec.charset.unknown(word)]
        if not fits:
            raise ConfigError(
                f"the lexicon holds no word that this model can write (of {len(unique)}, by characters and length)"
            )
        self.words, self.left_out = fits, len(unique) - len(fits)
        self._ids, _ = codec.encode(fits)
        self._lengths = np.fromiter(map(len, fits), np.int64, len(fits))
        self._codec = codec

    def nearest(self, texts: Sequence[str], confidences: NDArray[np.float32]) -> Readings:
        """Return the word with the fewest edits from each text; its confidence falls with the share of edits."""
        distances = self._distances(texts)
        chosen = distances.argmin(axis=1)
        edits = distances[np.arange(len(texts)), chosen]
        longer = np.maximum(self._lengths[chosen], [len(text) for text in texts])
        return [self.words[i] for i in chosen], (confidences * (1 - edits / longer)).astype(np.float32)

    def most_probable(self, log_probs: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return ids and lengths of the word with the highest CTC probability, of those nearest to the greedy text."""
        best = log_probs.argmax(axis=2)
        texts, _ = self._codec.decode(best, np.ones(best.shape))
        distances = self._distances(texts)
        count = min(SHORTLIST, len(self.words))
        short = np.argpartition(distances, count - 1, axis=1)[:, :count]
        ids, lengths = self._ids[short], self._lengths[short]
        ids = ids[:, :, : int(lengths.max())]
        scores = np.stack(
            [
                text_log_probability(np.broadcast_to(row, (count, *row.shape)), row_ids, row_lengths)
                for row, row_ids, row_lengths in zip(log_probs, ids, lengths, strict=True)
            ]
        )
        # Where the steps can hold none of them, all scores are -inf and the nearest word stands.
        ties = scores - 1e-9 * np.take_along_axis(distances, short, 1)
        hopeless = np.isneginf(scores).all(axis=1)
        chosen = np.where(hopeless, np.take_along_axis(distances, short, 1).argmin(axis=1), ties.argmax(axis=1))
        rows = np.arange(len(chosen))
        return ids[rows, chosen], lengths[rows, chosen]

    def _distances(self, texts: Sequence[str]) -> NDArray[np.int64]:
        found = process.cdist(texts, self.words, scorer=Levenshtein.distance, dtype=np.uint16)
        return found.astype(np.int64)


def read_words(path: str | Path) -> list[str]:
    """Return the words of a lexicon file, one a line, UTF-8; blank lines are passed over.

    Raises:
        ConfigError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_LEXICON_BYTES + 1)
        if len(data) > MAX_LEXICON_BYTES:
            raise ConfigError(f"lexicon {path}: larger than {MAX_LEXICON_BYTES >> 20} MiB, which no list of words is")
        return [line for line in data.decode("utf-8-sig").replace("\r", "").split("\n") if line]
    except OSError as error:
        raise ConfigError(f"lexicon {path}: cannot be read ({explain(error)})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"lexicon {path}: not UTF-8; save it as UTF-8, one word a line") from error
