from __future__ import annotations

import pytest

from inkmill.bench.strong import Strength, strong_ops, strong_spec
from inkmill.data.augment import Augmentation
from inkmill.data.augment.ops import Curve, Elastic, load_preset


def test_strong_is_the_scene_text_preset_less_its_local_warps():
    preset = load_preset("scene_text")
    assert strong_ops() == [op for op in preset if not isinstance(op, Curve | Elastic)]
    assert len(strong_ops()) == len(preset) - 2


def test_inkmill_runs_the_list_that_the_peers_read():
    layout = Augmentation.from_spec(strong_spec()).layout
    assert layout == Augmentation(strong_ops()).layout
    assert layout.waves == 0


def test_one_affine_happens_as_often_as_any_of_the_four_changes_it_stands_for():
    strength = Strength()
    none = 1.0
    for op in (strength.rotate, strength.shear, strength.scale, strength.shift):
        none *= 1 - op.p
    assert strength.affine_p == pytest.approx(1 - none)
