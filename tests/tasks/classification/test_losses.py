from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from inkmill.tasks.classification.losses import (  # noqa: E402
    asymmetric,
    binary_cross_entropy,
    cross_entropy,
    focal,
    make_loss,
    positive_weights,
)

BINARY = [binary_cross_entropy, focal, asymmetric]


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float32)


@pytest.fixture
def targets() -> torch.Tensor:
    return (torch.rand(6, 5, generator=torch.Generator().manual_seed(4)) < 0.4).float()


def test_cross_entropy_is_torchs(logits: torch.Tensor) -> None:
    classes = torch.tensor([0, 4, 2, 2, 1, 3])
    wanted = torch.nn.functional.cross_entropy(logits, classes, label_smoothing=0.1)
    found = cross_entropy(logits, torch.nn.functional.one_hot(classes, 5).float(), smoothing=0.1)
    torch.testing.assert_close(found, wanted)


def test_binary_cross_entropy_is_torchs(logits: torch.Tensor, targets: torch.Tensor) -> None:
    weight = torch.tensor([1.0, 2.0, 3.0, 0.5, 1.0])
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=weight)
    torch.testing.assert_close(binary_cross_entropy(logits, targets, weight), wanted)


def test_focal_loss_is_torchvisions(logits: torch.Tensor, targets: torch.Tensor) -> None:
    ops = pytest.importorskip("torchvision.ops")
    torch.testing.assert_close(focal(logits, targets), ops.sigmoid_focal_loss(logits, targets, reduction="mean"))


def test_asymmetric_loss_is_timms(logits: torch.Tensor, targets: torch.Tensor) -> None:
    losses = pytest.importorskip("timm.loss")
    theirs = losses.AsymmetricLossMultiLabel(disable_torch_grad_focal_loss=True)
    ours, other = (logits.clone().requires_grad_() for _ in range(2))
    found, wanted = asymmetric(ours, targets), theirs(other, targets)
    torch.testing.assert_close(found * targets.shape[1], wanted)  # theirs is a sum over classes
    found.backward()
    wanted.backward()
    torch.testing.assert_close(ours.grad * targets.shape[1], other.grad)


def test_the_asymmetric_loss_leaves_autograd_as_it_was(logits: torch.Tensor, targets: torch.Tensor) -> None:
    with torch.no_grad():
        asymmetric(logits, targets)
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("loss", BINARY, ids=lambda loss: loss.__name__)
def test_unknown_labels_give_no_loss_and_no_gradient(loss, logits: torch.Tensor, targets: torch.Tensor) -> None:
    targets[2, 3] = -1
    first, second = logits.clone().requires_grad_(), logits.clone()
    second[2, 3] = 17.0
    value = loss(first, targets)
    value.backward()
    torch.testing.assert_close(value.detach(), loss(second, targets))
    assert first.grad[2, 3] == 0


def test_an_image_of_unknown_class_does_not_count_in_cross_entropy(logits: torch.Tensor) -> None:
    targets = torch.nn.functional.one_hot(torch.tensor([0, 4, 2, 2, 1, 3]), 5).float()
    targets[1] = -1
    kept = [0, 2, 3, 4, 5]
    torch.testing.assert_close(cross_entropy(logits, targets), cross_entropy(logits[kept], targets[kept]))
    assert cross_entropy(logits[1:2], targets[1:2]) == 0


def test_positive_weights_are_capped_and_one_without_positives() -> None:
    weights = positive_weights(torch.tensor([1, 50, 0, 99]), torch.tensor([1000, 100, 100, 100]))
    torch.testing.assert_close(weights, torch.tensor([20.0, 1.0, 1.0, 1 / 20]))


def test_each_kind_of_task_has_its_own_default() -> None:
    assert make_loss("auto", exclusive=False) is asymmetric
    assert make_loss("auto", exclusive=True).func is cross_entropy
