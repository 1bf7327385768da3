from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inkmill.config.synthetic import SyntheticSpec
from inkmill.data.augment.random_numbers import sample_states
from inkmill.synth.atlas import Atlas, build_atlas
from inkmill.synth.characters import CHARACTERS
from inkmill.synth.compose import ground_cells
from inkmill.synth.engine import Settings
from inkmill.synth.fonts import CARRIED
from inkmill.synth.params import GroundTable, SynthParams
from inkmill.synth.sampling import OTHER_CHARACTERS, SynthSampler

FILES = [CARRIED / name for name in ("OpenSans-Regular.ttf", "Bangers-Regular.ttf", "Anton-Regular.ttf")]
WORDS = ["EXIT", "Phường", "a", "12.50", "www.inkmill.org", "Ở", "l", "two words"]


def codes_of(texts: list[str], length: int) -> np.ndarray:
    """Return texts as positions in the character set, int16 (B, length)."""
    codes = np.full((len(texts), length), -1, np.int16)
    for row, text in enumerate(texts):
        codes[row, : len(text)] = [CHARACTERS.index(character) for character in text]
    return codes


@pytest.fixture(scope="session")
def glyph_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("glyphs")


@pytest.fixture(scope="session")
def atlas(glyph_cache: Path) -> Atlas:
    return build_atlas(FILES, CHARACTERS, glyph_cache)


@pytest.fixture(scope="session")
def grounds() -> GroundTable:
    """Two pictures: one of noise, and one that is dark on the left and light on the right."""
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3))
    ramp = np.broadcast_to(np.linspace(20, 220, 32)[None, :, None], (32, 32, 3))
    return ground_cells(np.stack([noise, ramp]).astype(np.uint8))


@pytest.fixture(scope="session")
def sampler(atlas: Atlas, grounds: GroundTable) -> SynthSampler:
    return SynthSampler.of(atlas.fonts, grounds)


@pytest.fixture(scope="session")
def sampled(sampler: SynthSampler) -> SynthParams:
    """1024 rows of all kinds of text."""
    texts = WORDS * 128
    others = codes_of(["other text nearby"] * len(texts), OTHER_CHARACTERS)
    return sampler.sample(np, sample_states(3, 0, np.arange(len(texts))), codes_of(texts, 16), others)


@pytest.fixture(scope="session")
def encode():
    return codes_of


@pytest.fixture(scope="session")
def settings() -> Settings:
    """Three fonts, all texts."""
    return Settings(SyntheticSpec(fonts=[str(file) for file in FILES], share=1, samples=200), CHARACTERS, 40)
