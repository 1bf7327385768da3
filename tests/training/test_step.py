"""The step: by hand beside it on a CPU, captured beside eager on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from inkmill.config.load import load_spec
from inkmill.config.spec import Spec
from inkmill.runtime.torch_reader import ForwardPass
from inkmill.tasks.base import Task
from inkmill.tasks.classification.task import Classification
from inkmill.tasks.model import TaskModel, Tensors
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.task import Recognition
from inkmill.training.ema import WeightAverage
from inkmill.training.optim import Schedule, load_optimizer, optimizer_state
from inkmill.training.run import launch
from inkmill.training.step import CapturedStep, GradientSums, TrainingStep, make_step

CPU = ["train.device=cpu", "train.num_gpus=0"]
FULL, LONGEST = 8, 6
on_gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def small(*settings: str) -> Spec:
    model = ["model.backbone=Tiny", "model.sequence=none", "model.input_width=64", f"dataset.batch_size={FULL}"]
    return load_spec(None, [*model, "train.model_ema=true", "train.optim.name=adamw", *settings])


def task_of(spec: Spec) -> Task:
    if spec.task == "classification":
        spec.classification.dropout = 0.3  # type: ignore[attr-defined]
        return Classification(spec.model, "abcd", (), spec.classification)  # type: ignore[attr-defined]
    return Recognition(spec.model, Charset.from_texts(["abcdefgh"]), LONGEST)


class Rig:
    """A small model with its step, and random batches."""

    def __init__(self, spec: Spec) -> None:
        fabric, _ = launch(spec.train)
        torch.manual_seed(3)
        self.spec, self.task, self.notes = spec, task_of(spec), list[str]()
        self.model: TaskModel = self.task.build().to(memory_format=torch.channels_last).to(fabric.device).train()
        self.average = WeightAverage(self.model, 0.9)
        self.step = make_step(fabric, spec, self.model, self.average, self.notes.append)
        self.schedule = Schedule(spec.train.optim, 100, 1)

    def batch(self, number: int, size: int = FULL) -> tuple[Tensor, Tensors]:
        generator = torch.Generator().manual_seed(number)
        images = torch.randint(0, 256, (size, 32, 64, 1), dtype=torch.uint8, generator=generator)
        if self.spec.task == "classification":
            truths: list[Any] = list(torch.eye(4).numpy()[[n % 4 for n in range(size)]])
        else:
            truths = ["abcdefgh"[number % 5 : number % 5 + 1 + n % 3] for n in range(size)]
        device = next(self.model.parameters()).device
        images = images.to(device)
        targets = self.model.to_targets(self.task.encode(truths), None, images.permute(0, 3, 1, 2))  # type: ignore[arg-type]
        return images, targets

    def train(self, batches: Iterator[int] | range, sizes: dict[int, int] | None = None) -> list[float]:
        every = self.spec.train.accumulate
        losses = []
        for number in batches:
            images, targets = self.batch(number, (sizes or {}).get(number, FULL))
            updates = (number + 1) % every == 0
            if updates:
                self.schedule.apply(self.step.optimizer, number // every)
            losses.append(self.step(images, targets, updates))
        return [float(loss) for loss in losses]

    def weights(self) -> dict[str, Tensor]:
        mean = {f"mean.{name}": tensor for name, tensor in self.average.weights.items()}
        return {name: tensor.detach().clone() for name, tensor in {**self.model.state_dict(), **mean}.items()}


def by_hand(rig: Rig, batches: range) -> list[float]:
    """The same training in torch's own words."""
    every, losses = rig.spec.train.accumulate, []
    decayed = [p for p in rig.model.parameters() if p.ndim > 1]
    others = [p for p in rig.model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others}], lr=1e-3, weight_decay=0.0)
    for number in batches:
        images, targets = rig.batch(number)
        scores = rig.model((images.permute(0, 3, 1, 2).float() - 127.5) / 127.5, *rig.model.taught(targets))
        loss = rig.model.loss(scores, targets)
        (loss / every).backward()
        losses.append(float(loss.detach()))
        if (number + 1) % every == 0:
            torch.nn.utils.clip_grad_norm_(rig.model.parameters(), rig.spec.train.clip_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            rig.average.update(rig.model)
    return losses


@pytest.mark.parametrize("every", [1, 2])
def test_a_cpus_step_is_forward_backward_clipping_optimiser_and_average(every: int) -> None:
    spec = small(*CPU, f"train.accumulate={every}", "train.clip_grad_norm=0.5")
    one, other = Rig(spec), Rig(spec)
    assert type(one.step) is TrainingStep
    assert one.train(range(4)) == pytest.approx(by_hand(other, range(4)), rel=1e-5)
    for name, tensor in one.weights().items():
        assert torch.allclose(tensor.float(), other.weights()[name].float(), rtol=1e-4, atol=1e-6), name
    assert one.notes == [], "a CPU's step is not to be captured, so nothing is said"


def test_a_batch_of_nothing_gives_every_weight_a_gradient_of_zero() -> None:
    rig = Rig(small(*CPU))
    assert float(rig.step(*rig.batch(0, size=0), updates=False)) == 0
    assert all(weight.grad is not None and not weight.grad.any() for weight in rig.model.parameters())


def test_sums_of_gradients_are_what_autograd_adds_up() -> None:
    rig, other = Rig(small(*CPU)), Rig(small(*CPU))
    sums = GradientSums(rig.model, 1)
    for turn in range(2):  # the second begins with zeros again
        for number in range(2):
            rig.step(*rig.batch(2 * turn + number), updates=False)
            sums.add()
            other.step(*other.batch(2 * turn + number), updates=False)
        with sums.as_gradients():
            for weight, same in zip(rig.model.parameters(), other.model.parameters(), strict=True):
                assert torch.equal(weight.grad, same.grad)  # type: ignore[arg-type]
                assert weight.grad.stride() == weight.stride()  # type: ignore[union-attr]
        other.step.optimizer.zero_grad()


@pytest.mark.parametrize("head", ["CTC", "Attn"])
def test_targets_have_one_size_and_their_padding_counts_for_nothing(head: str) -> None:
    rig = Rig(small(*CPU, f"model.prediction={head}"))
    few, many = rig.task.encode(["a", "b"])[0], rig.task.encode(["abcdef"])[0]
    assert few.shape[1] == many.shape[1] >= LONGEST
    images, (ids, lengths) = rig.batch(1)
    cut = ids[:, : int(lengths.max())]
    assert cut.shape[1] < ids.shape[1]
    inputs = images.permute(0, 3, 1, 2).float() / 255
    padded = rig.model.loss(rig.model(inputs, *rig.model.taught((ids, lengths))), (ids, lengths))
    plain = rig.model.loss(rig.model(inputs, *rig.model.taught((cut, lengths))), (cut, lengths))
    assert float(padded.detach()) == pytest.approx(float(plain.detach()), rel=1e-6)


def test_an_optimisers_state_says_nothing_of_its_device_and_older_ones_that_do_are_taken() -> None:
    rig, resumed = Rig(small(*CPU)), Rig(small(*CPU))
    rig.train(range(2))
    state = deepcopy(optimizer_state(rig.step.optimizer))
    assert not state["param_groups"][0].keys() & {"lr", "fused", "foreach", "capturable"}
    for group in state["param_groups"]:
        group.update(lr=torch.tensor(0.5), fused=True, capturable=True)  # as a GPU's were written
    load_optimizer(resumed.step.optimizer, state)
    group = resumed.step.optimizer.param_groups[0]
    assert (group["lr"], group["fused"], group["capturable"]) == (1e-3, False, False)
    resumed.model.load_state_dict(rig.model.state_dict())
    resumed.average.load_state_dict(rig.average.state_dict())
    assert rig.train(range(2, 4)) == resumed.train(range(2, 4))


@on_gpu
@needs_gpu
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    "kind",
    [
        *(["model.prediction=CTC"], ["model.prediction=Attn"], ["model.prediction=Slots"], ["task=classification"]),
        ["model.sequence=BiLSTM", "train.optim.name=adadelta"],
        ["model.TPS=true", "train.precision=bf16"],
    ],
)
def test_a_captured_step_learns_what_an_eager_one_learns(kind: list[str], every: int) -> None:
    spec = [*kind, f"train.accumulate={every}"]
    if not any("precision" in word for word in kind):
        spec.append("train.precision=fp32")
    captured, eager = Rig(small(*spec)), Rig(small(*spec, "train.compile=false"))
    assert isinstance(captured.step, CapturedStep)
    assert not isinstance(eager.step, CapturedStep)
    short = {9: 5}  # eager beside the graphs
    torch.manual_seed(1)
    found = captured.train(range(12), short)
    torch.manual_seed(1)
    expected = eager.train(range(12), short)
    assert captured.notes == []
    assert len(captured.step._learn.recorded) == 1
    bound = 2e-2 if "train.precision=bf16" in spec else 1e-3
    assert found == pytest.approx(expected, rel=bound)
    for name, tensor in eager.weights().items():
        assert torch.allclose(captured.weights()[name].float(), tensor.float(), rtol=0.05, atol=2e-3), name


@on_gpu
@needs_gpu
def test_a_resumed_run_of_captured_steps_continues_to_the_bit() -> None:
    spec = small("task=classification", "train.precision=fp32")  # with dropout
    whole, first, second = Rig(spec), Rig(spec), Rig(spec)
    torch.manual_seed(1)
    losses = whole.train(range(12))
    torch.manual_seed(1)
    assert first.train(range(6)) == losses[:6]
    state, random = deepcopy(optimizer_state(first.step.optimizer)), torch.cuda.get_rng_state()
    torch.rand(7, device="cuda")
    second.model.load_state_dict(first.model.state_dict())
    second.average.load_state_dict(first.average.state_dict())
    load_optimizer(second.step.optimizer, state)
    torch.cuda.set_rng_state(random)
    assert second.train(range(6, 12)) == losses[6:]
    for name, tensor in whole.weights().items():
        assert torch.equal(second.weights()[name], tensor), name


@on_gpu
@needs_gpu
def test_what_cannot_be_captured_trains_on_eagerly_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small("train.precision=fp32", "model.prediction=Slots")
    rig, eager = Rig(spec), Rig(small("train.precision=fp32", "model.prediction=Slots", "train.compile=false"))
    loss = rig.model.loss

    def looks(outputs: Tensor, targets: Tensors) -> Tensor:
        found = loss(outputs, targets)
        return found * (1.0 if found.item() > 0 else 0.5)  # waits for the GPU

    monkeypatch.setattr(rig.model, "loss", looks)
    assert rig.train(range(6)) == pytest.approx(eager.train(range(6)), rel=1e-3)
    assert len(rig.notes) == 1
    assert "the training step is not captured as a CUDA graph" in rig.notes[0]
    assert "captur" in rig.notes[0].partition(":")[2]
    torch.rand(3, device="cuda")  # the generator is not left in the middle of a recording


@on_gpu
@needs_gpu
def test_fp16_is_not_captured_and_says_why() -> None:
    rig = Rig(small("train.precision=fp16"))
    assert type(rig.step) is TrainingStep
    assert "bf16" in rig.notes[0]


@on_gpu
@needs_gpu
@pytest.mark.parametrize("head", ["CTC", "Attn"])
def test_captured_reading_answers_as_eager_reading_and_follows_the_weights(head: str) -> None:
    rig = Rig(small("train.precision=fp32", f"model.prediction={head}"))
    names = tuple(rig.task.plain_decoder().needs)
    captured, eager = (ForwardPass(rig.model, names, True, captured=how) for how in (True, False))
    for turn in range(3):
        rig.train(range(4 * turn, 4 * turn + 4))
        rig.model.eval()
        with torch.inference_mode():
            for number in range(4):  # the second call records
                images, targets = rig.batch(number)
                ids, probabilities, loss = captured(images, targets)
                known_ids, known_probabilities, known_loss = eager(images, targets)
                assert torch.equal(ids, known_ids)
                assert torch.allclose(probabilities, known_probabilities, atol=1e-4)
                assert torch.allclose(loss, known_loss, rtol=1e-4)
        rig.model.train()
