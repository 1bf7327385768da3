from dataclasses import replace

import numpy as np
import pytest

from inkmill.synth.compose import compose, ground_cells
from inkmill.synth.params import EM_PIXELS, SLICES, STEPS_PER_PIXEL, WIDTH, GlyphTable, SynthParams

SIDE = 41  # of the glyph's box, pixels of the atlas
RADIUS = 12


@pytest.fixture(scope="module")
def disc() -> GlyphTable:
    """One glyph, a disc whose middle is 24 px right of the pen and 18 px above the baseline."""
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    distances = np.clip(np.rint(128 + (RADIUS - np.hypot(x, y)) * STEPS_PER_PIXEL), 1, 255).astype(np.uint8)
    left, top = round(24 - (SIDE - 1) / 2), round(-18 - (SIDE - 1) / 2)
    return GlyphTable(distances.ravel(), np.array([[0, left, top, SIDE, SIDE]], np.int32))


@pytest.fixture(scope="module")
def grounds():
    rng = np.random.default_rng(0)
    return ground_cells(rng.integers(0, 256, (2, 16, 16, 3), np.uint8))


def row(**columns: object) -> SynthParams:
    """A black disc in the middle of an em square on white, with some columns changed."""
    values = np.zeros((1, WIDTH), np.float32)
    # The em square from (0, -0.875) on, so that the disc's middle (0.5, -0.375) is the middle of the image.
    chosen = {"matrix": [1, 0, 0, 0, 1, -0.875, 0, 0, 1], "fill_opacity": 1, "ground_colour": 255} | columns
    for name, value in chosen.items():
        values[:, SLICES[name]] = value
    codes = np.full((1, 64), -1, np.int16)
    places = np.zeros((1, 2, 8), np.float32)
    places[0, 0] = [0, 0, EM_PIXELS, 0, 0, EM_PIXELS, 1, 0]
    return SynthParams(values, codes, np.array([[0, -1]], np.int32), places)


def ink(images: np.ndarray) -> float:
    """The painted area of the first image as a share of it."""
    return float(1 - images[0].mean() / 255)


@pytest.mark.parametrize("size", [(96, 96), (24, 24), (32, 64)])
def test_a_glyph_covers_its_area_at_every_size(disc, grounds, size):
    expected = np.pi * (RADIUS / EM_PIXELS) ** 2
    assert ink(compose(row(), disc, grounds, *size)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("grow", [-0.05, 0.05])
def test_weight_moves_the_outline_by_so_many_em(disc, grounds, grow):
    expected = np.pi * (RADIUS / EM_PIXELS + grow) ** 2
    assert ink(compose(row(weight=grow), disc, grounds, 64, 64)) == pytest.approx(expected, rel=0.02)


def test_a_hollow_letter_shows_its_outline_alone(disc, grounds):
    hollow = row(fill=255, outline=0.05, outline_opacity=1)
    expected = np.pi * ((RADIUS / EM_PIXELS + 0.05) ** 2 - (RADIUS / EM_PIXELS) ** 2)
    assert ink(compose(hollow, disc, grounds, 64, 64)) == pytest.approx(expected, rel=0.03)


def test_a_shadow_lies_where_it_is_cast_and_an_extrusion_reaches_there(disc, grounds):
    moved = {"shadow_offset": [0.2, 0.0], "shadow_opacity": 1, "shadow_colour": 128, "ground_colour": 255}
    shadow, extrusion = (compose(row(shadow_steps=steps, **moved), disc, grounds, 256, 256)[0] for steps in (1, 4))
    # The disc ends at u = 0.75, its shadow at 0.95; above its middle the extrusion fills the notch between both.
    assert shadow[128, 230, 0] == 128
    assert shadow[66, 153, 0] == 255
    assert extrusion[66, 153, 0] == 128


def test_an_arc_lowers_what_is_beside_its_middle(disc, grounds):
    def height_of(images: np.ndarray) -> float:
        dark = 255 - images[0, :, :, 0].astype(float)
        return float((dark.sum(axis=1) * np.arange(64)).sum() / dark.sum())

    straight, bent = (compose(row(arc=[curve, -0.3]), disc, grounds, 64, 64) for curve in (0.0, 0.4))
    assert height_of(bent) - height_of(straight) > 4


def test_a_ground_keeps_the_colour_that_the_contrast_was_chosen_for(disc, grounds):
    centre = grounds.pictures[1].mean(axis=(0, 1))
    textured = row(
        ground=1,
        ground_matrix=[16, 0, 0, 0, 16, 0],
        ground_centre=centre,
        ground_colour=[90, 120, 150],
        ground_strength=0.3,
        fill_opacity=0,
    )
    image = compose(textured, disc, grounds, 64, 64)[0]
    np.testing.assert_allclose(image.mean(axis=(0, 1)), [90, 120, 150], atol=4)
    assert image.std() > 5


def test_a_level_ground_is_that_of_one_turned_by_next_to_nothing(disc, grounds):
    level, turned = ([11.0, skew, -3.5, skew, -40.0, 7.25] for skew in (0.0, 1e-6))
    shown = {"ground_strength": 1, "ground_centre": 255, "ink_strength": 0.5, "ink": 1, "fill": 100}
    one, other = (
        compose(row(ground_matrix=matrix, ink_matrix=matrix, **shown), disc, grounds, 48, 96)
        for matrix in (level, turned)
    )
    assert one.std() > 20
    assert np.abs(one.astype(int) - other).max() <= 1


def test_a_turned_letter_is_found_wherever_it_reaches(disc, grounds):
    # A letter turned by any angle about the middle of its disc covers the same area.
    angles, covered = np.linspace(0, 2 * np.pi, 9), []
    for angle in angles:
        sample = row()
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        pen = np.array([0.5, -0.375]) + turn.T @ [-0.5, 0.375]
        sample.places[0, 0, :6] = [*pen, *(EM_PIXELS * turn).ravel()]
        covered.append(ink(compose(sample, disc, grounds, 64, 64)))
    np.testing.assert_allclose(covered, covered[0], rtol=0.01)


def test_a_row_is_the_same_image_in_any_batch(disc, grounds):
    one, two = row(weight=0.02), row(arc=[0.3, 0.5], rule=[0.1, 0.02])
    both = SynthParams(*(np.concatenate([getattr(one, name), getattr(two, name)]) for name in two.__dataclass_fields__))
    np.testing.assert_array_equal(compose(both, disc, grounds, 32, 48)[1:], compose(two, disc, grounds, 32, 48))


def test_grounds_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="power of two"):
        ground_cells(np.zeros((1, 48, 48, 3), np.uint8))


def test_another_layer_has_its_own_colour(disc, grounds):
    sample = row(other_colour=[200, 0, 0], other_opacity=1)
    places = sample.places.copy()
    places[0, 0, 7] = 1
    image = compose(replace(sample, places=places), disc, grounds, 32, 32)[0]
    assert image[16, 16].tolist() == [200, 0, 0]
