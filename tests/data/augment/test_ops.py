from __future__ import annotations

import pytest

from inkmill.config.dataset import AugmentationSpec
from inkmill.data.augment.ops import OPS, load_preset, ops_of, parse_ops, preset_names
from inkmill.errors import ConfigError


def test_one_number_is_a_range_to_both_sides_for_angles_and_a_constant_elsewhere() -> None:
    rotate, blur = parse_ops([{"op": "rotate", "degrees": 5}, {"op": "blur", "sigma": 2}])
    assert rotate.degrees == (-5, 5)
    assert blur.sigma == (2, 2)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"op": "rotat"},
            r"augmentation.ops\[1\]: unknown augmentation op 'rotat' \(did you mean 'rotate'\?\); known: ",
        ),
        (
            {"op": "rotate", "degree": 3},
            r"ops\[1\] \(rotate\): unknown key 'degree' \(did you mean 'degrees'\?\); known: p",
        ),
        ({"op": "rotate", "degrees": [5, 1]}, r"degrees=\[5, 1\]: expected a range \[from, to\] between -360 and 360"),
        ({"op": "jpeg", "quality": [0, 50]}, r"quality=\[0, 50\]: expected a range \[from, to\] between 1 and 100"),
        ({"op": "noise", "std": "much"}, r"std='much': expected a range"),
        ({"op": "noise", "p": 2}, r"p=2: input should be less than or equal to 1"),
        ({"p": 0.5}, r"expected an op such as \{op: rotate"),
        ("rotate", r"expected an op such as \{op: rotate"),
        ({"op": "group", "ops": [{"op": "blurr"}]}, r"ops\[1\]\.ops\[0\]: unknown augmentation op 'blurr'"),
    ],
)
def test_a_wrong_entry_is_named_with_what_was_expected(entry: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_ops([{"op": "invert"}, entry])


@pytest.mark.parametrize("name", preset_names())
def test_every_shipped_preset_parses(name: str) -> None:
    assert len(load_preset(name)) >= 3


def test_the_presets_are_the_promised_ones() -> None:
    assert preset_names() == ["captcha", "lib_ocr", "scene_text", "synthetic_text", "tao"]


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown augmentation preset 'scene-text' \(did you mean 'scene_text'\?\)"):
        ops_of(AugmentationSpec(preset="scene-text"))


def test_taos_keys_preset_and_list_add_up_in_this_order() -> None:
    spec = AugmentationSpec(aug_prob=0.5, preset="captcha", ops=[{"op": "flip"}])
    kinds = [type(op) for op in ops_of(spec)]
    assert kinds[0] is OPS.get("group")
    assert kinds[-1] is OPS.get("flip")
    assert len(kinds) == 1 + len(load_preset("captcha")) + 1


def test_nothing_is_augmented_by_default() -> None:
    assert ops_of(AugmentationSpec()) == []
