from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.config.model import ModelSpec
from inkmill.nn.narrow import cut, find_cuts, runs
from inkmill.tasks.recognition.model import Recognizer, build_recognizer

SMALL = {"backbone": "VGG", "feature_channel": 16, "hidden_size": 4, "input_width": 32}


def whole(prediction: str = "CTC", sequence: str = "BiLSTM") -> Recognizer:
    return build_recognizer(ModelSpec.model_validate(SMALL | {"prediction": prediction, "sequence": sequence}), 5, 3)


def test_cuts_are_what_is_missing_and_make_the_sizes_of_the_file() -> None:
    model, narrow = whole(), {"backbone.layers.10.weight": (3, 0, 0, 0), "backbone.layers.10.bias": (3,)}
    for direction in ("", "_reverse"):
        narrow[f"neck.0.rnn.weight_ih_l0{direction}"] = (0, 3)
    cut(model, narrow)
    assert find_cuts(whole().state_dict(), model.state_dict()) == narrow
    assert model.backbone.out_channels == 13
    assert runs(model)


def test_what_is_no_smaller_version_of_the_model_has_no_cuts() -> None:
    weights = whole().state_dict()
    first = "backbone.layers.0.0.weight"
    assert find_cuts(weights, weights) == {}
    for other in (torch.zeros(3, 1, 3, 3), torch.zeros(2, 1, 3, 2), torch.zeros(2, 1, 3), torch.zeros(0, 1, 3, 3)):
        assert find_cuts(weights, weights | {first: other}) == {}
    assert find_cuts(weights, {name: tensor for name, tensor in weights.items() if name != first}) == {}


@pytest.mark.parametrize(
    "cuts", [{"nowhere.weight": (1,)}, {"backbone.layers.0.0.bias": (2,)}, {"head.classes.bias": ()}]
)
def test_cuts_that_leave_nothing_or_have_no_place_are_refused(cuts: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="no tensor"):
        cut(whole(), cuts)


@settings(max_examples=60)
@given(st.sampled_from([("CTC", "BiLSTM"), ("Attn", "none"), ("Slots", "none")]), st.data())
def test_a_single_smaller_tensor_never_passes_for_a_pruned_model(stages: tuple[str, str], data: st.DataObject) -> None:
    model = whole(*stages)
    sizes = {
        name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if max(tensor.shape, default=1) > 1
    }
    name = data.draw(st.sampled_from(sorted(sizes)))
    axis = data.draw(st.sampled_from([axis for axis, size in enumerate(sizes[name][:2]) if size > 1]))
    less = data.draw(st.integers(1, max(1, sizes[name][axis] - 2)))
    cut(model, {name: tuple(less if here == axis else 0 for here in range(len(sizes[name])))})
    assert not runs(model)
