"""Everything that synthetic text is drawn from, for one spec and one character set: texts, fonts, grounds, sampler.

A sample is a function of (seed, index): its state gives its text and the row of numbers that a composer draws. This is
the NumPy half, which works anywhere; `device.py` does the same on the device that trains.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import current_process

import numpy as np
from numpy.typing import NDArray

from inkmill.config.dataset import AugmentationSpec
from inkmill.config.synthetic import SyntheticSpec
from inkmill.data.augment.augmentation import Augmentation
from inkmill.data.augment.random_numbers import sample_states, splitmix64
from inkmill.data.sources.base import fingerprint
from inkmill.synth.atlas import Atlas, build_atlas
from inkmill.synth.compose import compose, ground_cells
from inkmill.synth.fonts import CARRIED, find_fonts
from inkmill.synth.grounds import make_grounds
from inkmill.synth.params import GroundTable, SynthParams
from inkmill.synth.sampling import OTHER_CHARACTERS, SynthSampler
from inkmill.synth.text import Codes, TextSampler

_OTHERS = 4096  # texts that may stand beside a sample's own; a power of two
_VERSION = 1  # raise it when the same spec draws other samples


@dataclass(frozen=True)
class Settings:
    """What decides how any sample looks; equal settings draw equal samples.

    Attributes:
        spec: fonts, texts, languages and grounds.
        characters: those that may be drawn; a code is a position among them.
        longest: characters of the longest text.
    """

    spec: SyntheticSpec
    characters: str
    longest: int

    @property
    def digest(self) -> str:
        """Hex digits that stand for these settings, with the names and sizes of the font files."""
        fonts = [(path.name, path.stat().st_size) for path in find_fonts(self.spec.fonts or [CARRIED])]
        spec = self.spec.model_dump(mode="json", exclude={"share", "samples"})
        parts = json.dumps([_VERSION, spec, self.characters, self.longest, fonts], sort_keys=True)
        return fingerprint("synthetic", parts)


class SynthEngine:
    """Draws synthetic samples on a CPU.

    Args:
        settings: what to draw.

    Attributes:
        texts: draws what is written.
        atlas: the fonts' letters.
        grounds: what lies behind.
        sampler: makes the rows.
        changes: random changes to images once they are drawn, None for none.
        notes: what was left out, one sentence each.

    Raises:
        DataError: fonts, texts or pictures that cannot be used.
        ConfigError: nothing is left to draw.
        MissingExtraError: a package for fonts is not installed.
    """

    def __init__(self, settings: Settings) -> None:
        spec = settings.spec
        self.changes = changes_of(spec)
        files = [(one.path, one.weight) for one in spec.texts]
        self.texts = TextSampler(spec.languages, spec.lines, files, settings.characters, settings.longest)
        # A loader's process may not start others; it finds the letters on the disk, where the first engine left them.
        workers = 0 if current_process().daemon else None
        self.atlas: Atlas = build_atlas(find_fonts(spec.fonts or [CARRIED]), settings.characters, workers=workers)
        self._others = self.texts.sample(sample_states(0, 0, np.arange(_OTHERS)))[:, :OTHER_CHARACTERS]
        self.grounds, on_grounds = _grounds(tuple(spec.grounds))
        notes = [*on_grounds]
        self.sampler = SynthSampler.of(self.atlas.fonts, self.grounds)
        left_out = [report for report in self.atlas.reports if report.problem]
        if left_out:
            first = left_out[0]
            notes.append(
                f"{len(left_out)} of {len(self.atlas.reports)} fonts are not used, e.g. {first.file}: {first.problem}"
            )
        self.notes = (*self.texts.notes, *notes)

    def codes(self, states: NDArray[np.uint64]) -> tuple[Codes, Codes]:
        """Return the texts of samples as codes, and the other text that may show beside them."""
        beside = self._others[(splitmix64(states + np.uint64(1)) % np.uint64(_OTHERS)).astype(np.int64)]
        return self.texts.sample(states), beside

    def rows(self, seed: int, index: NDArray[np.int64]) -> SynthParams:
        """Return the rows of samples, arrays of NumPy.

        Args:
            seed: of the run.
            index: int64 (B,), numbers of the samples.
        """
        states = sample_states(seed, 0, index)
        return self.sampler.sample(np, states, *self.codes(states))

    def images(self, params: SynthParams, height: int, width: int) -> NDArray[np.uint8]:
        """Draw rows; uint8 (B, height, width, 3), RGB."""
        return compose(params, self.atlas.glyphs, self.grounds, height, width)

    def strings(self, codes: Codes) -> list[str]:
        """Return the texts that rows show."""
        return self.texts.strings(codes)


@lru_cache(maxsize=2)
def _grounds(folders: tuple[str, ...]) -> tuple[GroundTable, tuple[str, ...]]:
    """Return the bank of grounds, which other fonts and texts share, and what could not be read for it."""
    pictures, notes = make_grounds(folders=folders)
    return ground_cells(pictures), tuple(notes)


def changes_of(spec: SyntheticSpec) -> Augmentation | None:
    """Return the random changes to synthetic images, None for none.

    Raises:
        ConfigError: no such preset.
    """
    return Augmentation.from_spec(AugmentationSpec(preset=spec.preset)) if spec.preset else None


@lru_cache(maxsize=2)
def _opened(digest: str, spec: str, characters: str, longest: int) -> SynthEngine:
    return SynthEngine(Settings(SyntheticSpec.model_validate_json(spec), characters, longest))


def open_engine(settings: Settings) -> SynthEngine:
    """Return the engine of some settings; a process opens each once.

    Raises:
        InkmillError: see SynthEngine.
    """
    spec = settings.spec.model_copy(update={"share": 1.0, "samples": 1}).model_dump_json()
    return _opened(settings.digest, spec, settings.characters, settings.longest)
