"""The attention decoder that CTC is trained beside."""

from __future__ import annotations

import pytest
import torch

from inkmill.config.model import ModelSpec
from inkmill.tasks.recognition.heads import AttentionGuide
from inkmill.tasks.recognition.model import Recognizer, build_recognizer

IDS = torch.tensor([[3, 4, 4, 0], [0, 0, 0, 0], [1, 2, 3, 4]])


def reader(guide: float) -> Recognizer:
    torch.manual_seed(2)
    return build_recognizer(ModelSpec(backbone="Tiny", sequence="none", guide=guide), 6, 4)


@pytest.fixture(scope="module")
def guide() -> AttentionGuide:
    torch.manual_seed(0)
    return AttentionGuide(8, 6, 4).eval()


def test_a_step_is_told_the_characters_before_it_and_no_others(guide: AttentionGuide) -> None:
    features = torch.randn(1, 7, 8)
    before, after = guide(features, IDS[:1]), guide(features, torch.tensor([[3, 4, 5, 5]]))
    assert before.shape == (1, 5, 6)
    assert torch.allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert not torch.allclose(before[:, 3], after[:, 3], atol=1e-4)


def test_characters_and_the_end_count_and_padding_does_not(guide: AttentionGuide) -> None:
    logits = torch.zeros(3, 5, 6, requires_grad=True)
    guide.loss(logits, IDS).backward()
    assert logits.grad is not None
    taught = logits.grad.abs().sum(dim=2) > 0
    assert taught.tolist() == [[True] * 4 + [False], [True] + [False] * 4, [True] * 5]
    assert logits.grad[0].argmin(dim=1)[:4].tolist() == [3, 4, 4, 0]  # pulled up: the characters, then the end


def test_the_guide_moves_the_backbone_and_its_weight_scales_it() -> None:
    images, lengths = torch.rand(3, 1, 32, 100) * 2 - 1, torch.tensor([3, 0, 4])
    losses = {}
    for weight in (0.0, 1.0, 2.0):
        model = reader(weight)
        loss = model.loss(model(images, *model.taught((IDS, lengths))), (IDS, lengths))
        losses[weight] = loss.item()
    assert losses[2.0] - losses[1.0] == pytest.approx(losses[1.0] - losses[0.0], rel=1e-4)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_reading_and_exporting_know_no_guide() -> None:
    model = reader(1.0).eval()
    images = torch.rand(2, 1, 32, 100)
    without = reader(0.0).eval()
    without.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("guide.")})
    assert torch.equal(model(images), without(images))
    assert model.reading_parameters() == without.reading_parameters() == sum(p.numel() for p in without.parameters())
    outputs, loss = model.outputs_and_loss(images, (IDS[:2], torch.tensor([3, 0])), ("output_id",))
    assert torch.equal(outputs["output_id"], without.outputs(images, ("output_id",))["output_id"])
    assert loss.isfinite()


def test_a_guide_is_for_ctc_alone() -> None:
    with pytest.raises(ValueError, match="guide is for prediction=CTC"):
        ModelSpec(prediction="Attn", guide=1.0)
