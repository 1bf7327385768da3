from __future__ import annotations

import numpy as np
import pytest

from inkmill.data.augment.params import LUMA
from inkmill.data.augment.random_numbers import sample_states
from inkmill.synth.atlas import Atlas
from inkmill.synth.characters import CHARACTERS
from inkmill.synth.compose import compose
from inkmill.synth.params import EM_PIXELS, REACH, SLICES, SPREAD_PIXELS, GroundTable, SynthParams
from inkmill.synth.sampling import OTHER_CHARACTERS, SynthSampler

TEXTS = ["EXIT", "Phường", "a", "12.50", "www.inkmill.org", "Ở", "l", "two words"]


def sample(sampler: SynthSampler, encode, index: list[int], texts: list[str], epoch: int = 0) -> SynthParams:
    others = encode([text[::-1] for text in texts], OTHER_CHARACTERS)
    return sampler.sample(np, sample_states(7, epoch, np.array(index)), encode(texts, 16), others)


def decoded(codes: np.ndarray) -> str:
    return "".join(CHARACTERS[code] for code in codes if code >= 0)


def test_a_row_is_the_same_in_any_batch_and_another_in_another_epoch(sampler: SynthSampler, encode):
    together = sample(sampler, encode, list(range(8)), TEXTS)
    for row in range(0, 8, 3):
        alone = sample(sampler, encode, [row], [TEXTS[row]])
        for name in ("values", "codes", "glyphs", "places"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[row])
    assert (sample(sampler, encode, list(range(8)), TEXTS, epoch=1).values != together.values).any(axis=1).all()


def test_torch_samples_what_numpy_samples(sampler: SynthSampler, sampled: SynthParams, encode):
    torch = pytest.importorskip("torch")
    texts = TEXTS * 8
    others = encode(["other text nearby"] * len(texts), OTHER_CHARACTERS)
    states = sample_states(3, 0, np.arange(len(texts)))
    ours = sampler.sample(np, states, encode(texts, 16), others)
    arguments = (torch.from_numpy(part) for part in (states.view(np.int64), encode(texts, 16), others))
    theirs = sampler.on("cpu").sample(torch, *arguments)
    np.testing.assert_array_equal(theirs.codes.numpy(), ours.codes)
    np.testing.assert_array_equal(theirs.glyphs.numpy(), ours.glyphs)
    np.testing.assert_allclose(theirs.places.numpy(), ours.places, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(theirs.values.numpy(), ours.values, rtol=1e-4, atol=2e-3)
    np.testing.assert_array_equal(ours.values, sampled.values[: len(texts)])


def test_the_label_is_what_the_font_writes(sampled: SynthParams, atlas: Atlas):
    capitals = atlas.fonts.caps_only[sampled["font"].astype(int)]
    assert 0.1 < capitals.mean() < 0.6
    for row, text in enumerate(TEXTS * 128):
        assert decoded(sampled.codes[row]) == (text.upper() if capitals[row] else text)


def test_text_that_no_tried_font_can_write_is_left_out_of_image_and_label(atlas: Atlas, grounds: GroundTable, encode):
    code = CHARACTERS.index("–")  # Bangers and Anton lack it
    fonts = atlas.fonts
    poor = SynthSampler.of(
        type(fonts)(**{name: part[1:] if len(part) == 3 else part for name, part in vars(fonts).items()}), grounds
    )
    rows = sample(poor, encode, list(range(16)), ["9–17"] * 16)
    assert {decoded(codes) for codes in rows.codes} == {"917"}
    assert ((rows.glyphs[:, :16] >= 0).sum(axis=1) == 3).all()
    kept = sample(SynthSampler.of(fonts, grounds), encode, list(range(16)), ["9–17"] * 16)
    assert (kept.codes[:, 1] == code).all()  # the first font has it, and one of eight tries finds it


def test_letters_can_be_told_from_what_is_behind_them(sampled: SynthParams):
    def brightness(name: str) -> np.ndarray:
        return sampled[name] @ LUMA

    on_plate = sampled["plate_opacity"] > 0
    behind = np.where(on_plate, brightness("plate_colour"), brightness("ground_colour"))
    hollow = sampled["fill_opacity"] == 0
    text = np.where(hollow, brightness("outline_colour"), brightness("fill"))
    assert 0 < hollow.mean() < 0.1
    assert np.abs(text - behind).min() >= 30


def test_edges_stay_within_the_distances_that_the_atlas_knows(sampled: SynthParams):
    edge = sampled["weight"] + sampled["outline"]
    assert (edge + sampled["outline_softness"] / 2).max() <= REACH + 1e-6
    assert (edge + sampled["shadow_softness"] / 2).max() <= REACH + 1e-6
    assert REACH < SPREAD_PIXELS / EM_PIXELS
    assert np.isfinite(sampled.values).all()


def test_a_third_of_the_samples_is_easy_and_each_effect_occurs(sampled: SynthParams):
    plain = (sampled["outline_opacity"] == 0) & (sampled["shadow_steps"] == 0) & (sampled["plate_opacity"] == 0)
    straight = (sampled["arc"][:, 0] == 0) & (sampled["wave"][:, 0] == 0)
    assert 0.3 < (plain & straight & (sampled["ground_strength"] <= 0.3)).mean() < 0.8
    for name in ("outline_opacity", "shadow_steps", "plate_opacity", "rule", "wave", "arc", "ink_strength"):
        column = sampled[name]
        used = (column if column.ndim == 1 else column[:, 1] if name == "rule" else column[:, 0]) != 0
        assert 0.01 < used.mean() < 0.5, name


def test_other_text_shows_at_the_edges_of_some_images_and_never_in_the_label(sampled: SynthParams):
    around = (sampled.glyphs[:, 16:] >= 0).any(axis=1)
    assert 0.3 < around.mean() < 0.5
    own = (sampled.glyphs[:, :16] >= 0).sum(axis=1)
    written = [len(decoded(codes).replace(" ", "")) for codes in sampled.codes]
    assert own.tolist() == written


def test_letters_are_drawn_inside_the_image(sampled: SynthParams, atlas: Atlas, grounds: GroundTable):
    # With everything but the letters' fill taken away, what is dark is text, and a wider view must not show more of it.
    rows = sampled.rows(np.flatnonzero(sampled["aspect"] > 1)[:24])
    plain = dict.fromkeys(("ground_strength", "ground_ramp", "ink_strength", "plate_opacity", "rule", "fill_ramp"), 0)
    plain |= {"fill": 0, "fill_opacity": 1, "ground_colour": 255, "outline_opacity": 0, "shadow_steps": 0}
    for name, value in plain.items():
        rows.values[:, SLICES[name]] = value
    rows.glyphs[:, 16:] = -1

    def dark(height: int, width: int) -> np.ndarray:
        return (255.0 - compose(rows, atlas.glyphs, grounds, height, width)).sum(axis=(1, 2, 3))

    inside = dark(32, 64)
    twice = np.array([[2, 0, -0.5], [0, 2, -0.5], [0, 0, 1]])
    rows.values[:, SLICES["matrix"]] = (rows["matrix"].reshape(-1, 3, 3) @ twice).reshape(-1, 9)
    share = inside / dark(64, 128)
    assert np.median(share) > 0.98
    assert share.min() > 0.75
