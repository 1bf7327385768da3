"""What a model file says about itself: enough to read with, and where it came from."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field, ValidationError, field_validator

from inkmill.config.base import Section
from inkmill.config.model import ModelSpec
from inkmill.errors import CharsetError, ConfigError, ModelFileError
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import Codec, make_codec
from inkmill.tasks.recognition.normalise import Normaliser

FORMAT = "inkmill-reader-1"
MAX_CHARACTERS = 200_000
"""More than Unicode has assigned."""
MAX_CARD = 16 << 20
"""Bytes of a card; one with 20,000 characters has 0.2 MiB."""

_PROVENANCE = {"made": list, "parameters": int} | dict.fromkeys(
    ("scores", "data", "licence", "settings", "speeds"), dict
)


class ModelHeader(Section):
    """The header of every model file: input, characters, decoder, provenance."""

    format: str = FORMAT
    """Version of this header."""
    model: ModelSpec
    """Architecture and input."""
    charset: list[str] = Field(min_length=1, max_length=MAX_CHARACTERS)
    """The characters, in class order, without the decoder's own classes."""
    normalise: list[str] = Field(default_factory=list)
    """Rule sets that were applied to the training labels, after NFC."""
    max_label_length: int = Field(gt=0, le=4096)
    """Longest text the reader was made for."""
    provenance: dict[str, Any] = Field(default_factory=dict)
    """Version of inkmill, training sets, best scores; for people, nothing depends on it."""

    @field_validator("provenance")
    @classmethod
    def _of_known_kinds(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, kind in _PROVENANCE.items():
            if value.get(name) is not None and not isinstance(value[name], kind):
                raise ValueError(f"{name} is no {kind.__name__}")
        return value

    def characters(self) -> Charset:
        """Return the character set."""
        return Charset(tuple(self.charset))

    def codec(self) -> Codec:
        """Return the codec between texts and class ids."""
        return make_codec(self.model.prediction, self.characters(), self.max_label_length)

    def history(self) -> list[dict[str, Any]]:
        """Return the steps in which the file was made, oldest first (see `inkmill.modelfile.model_card.step`)."""
        made = self.provenance.get("made")
        return [entry for entry in made if isinstance(entry, dict)] if isinstance(made, list) else []

    def to_json(self) -> str:
        """Return the card as one line of JSON."""
        text = json.dumps(self.model_dump(mode="json"), ensure_ascii=False)
        # Names of files may hold what UTF-8 cannot carry: it is spelled out (\\udce9), as JSON understands.
        return text.encode("utf-8", "backslashreplace").decode()

    @classmethod
    def from_json(cls, text: str, where: str) -> ModelHeader:
        """Parse a card.

        Args:
            text: what `to_json` wrote.
            where: the file it came from, for the error.

        Raises:
            ModelFileError: not a card, or one of a newer inkmill.
        """
        try:
            if len(text) > MAX_CARD:
                raise ModelFileError(f"{where}: its header is not a reader's card (it has {len(text):,} characters)")
            values = json.loads(text)
            if values.get("format") != FORMAT:
                raise ModelFileError(
                    f"{where}: written in format {values.get('format')!r}, this inkmill reads {FORMAT!r}"
                )
            card = cls.model_validate(values)
            card.characters()
            Normaliser(card.normalise)
            return card
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            key = ".".join(map(str, problem["loc"]))
            raise ModelFileError(
                f"{where}: its header is not a reader's card ({key}: {problem['msg']}); "
                "it is damaged, or written by another version of inkmill"
            ) from error
        except (ValueError, TypeError, AttributeError, RecursionError, CharsetError, ConfigError) as error:
            raise ModelFileError(f"{where}: its header is not a reader's card ({error})") from error
