"""`dataset.synthetic`: training samples that are drawn while training, see docs/synth.md."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from inkmill.config.base import Section


def _as_list(value: Any) -> Any:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _as_text_file(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


class TextFileSpec(Section):
    """A text file to draw from."""

    path: str
    """UTF-8: lines of text, of which pieces of a few words are drawn, or WORD TAB FREQUENCY."""
    weight: float = Field(50, gt=0)
    """How often it is drawn, beside the weights of the languages."""


class SyntheticSpec(Section):
    """Synthetic text in training."""

    share: float = Field(0.0, ge=0, le=1)
    """Share of the training samples that are synthetic: 0 none, 1 all."""
    samples: int = Field(100_000, gt=0)
    """Samples an epoch where all are synthetic; beside real sets, an epoch is one pass over these. No epoch repeats the
    samples of another where batches are drawn on a GPU."""
    fonts: Annotated[list[str], BeforeValidator(_as_list)] = Field(default_factory=list)
    """Font files, or folders that are searched for them; without any, the families that the package carries."""
    languages: dict[str, float] = Field(default_factory=lambda: {"en": 46.0, "vi": 37.0, "shared": 13.0, "random": 4.0})
    """How often the carried texts are drawn: English, Vietnamese, numbers with prices, dates and addresses, and random
    characters."""
    texts: Annotated[list[Annotated[TextFileSpec, BeforeValidator(_as_text_file)]], BeforeValidator(_as_list)] = Field(
        default_factory=list
    )
    """Text files to draw from too: paths, or {path, weight}."""
    lines: float = Field(0.1, ge=0, le=1)
    """Share of longer texts, up to a line of 64 characters; words of one to four otherwise."""
    grounds: Annotated[list[str], BeforeValidator(_as_list)] = Field(default_factory=list)
    """Pictures, folders or globs of pictures that half of the backgrounds are cut from; without any, all are made from
    numbers. Pictures with legible text teach a reader to leave text out."""

    preset: str | None = "synthetic_text"
    """Name of a shipped list of random changes to synthetic images, which the computer draws too well; see
    docs/augmentation.md. Real ones get dataset.augmentation."""

    @field_validator("languages")
    @classmethod
    def _are_weights(cls, value: dict[str, float]) -> dict[str, float]:
        if any(weight < 0 for weight in value.values()):
            raise ValueError("the weights of languages are 0 or more")
        return value
