"""CTC's loss and gradient in one GPU kernel, without synchronisation (Graves et al. 2006, equations 6 to 16).

`torch.nn.functional.ctc_loss` on a GPU copies lengths and offsets there from ordinary memory, and waits for each copy:
nine times a step. Until then the CPU cannot prepare what follows, so the GPU stands idle after each wait. Here one
program does one text: forward variables for all time steps, then backward ones, and the gradient on the way back. All
in logarithms; a text that does not fit its time steps has the loss infinity and no gradient.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


def ctc_losses(log_probs: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
    """Return -log p(target) of each text, float32 (B,); class 0 is the blank, and all texts have T time steps.

    Args:
        log_probs: float32 (B, T, K), normalised, on a GPU.
        targets: int64 (B, L), L <= 1023 (its states are one block of the kernel), on the same GPU.
        lengths: int64 (B,), likewise.
    """
    losses: Tensor = _CTCLosses.apply(log_probs.contiguous(), targets.contiguous(), lengths)
    return losses


class _CTCLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        batch, steps, classes = log_probs.shape
        block = max(16, triton.next_power_of_2(2 * targets.shape[1] + 1))
        losses = log_probs.new_empty(batch)
        gradient = torch.zeros_like(log_probs)
        forwards = log_probs.new_empty(batch, steps, block)
        backwards = log_probs.new_empty(batch, 2, block)
        # Triton starts kernels on the current device, which need not be the tensors'.
        with torch.cuda.device(log_probs.device) if log_probs.is_cuda else nullcontext():
            _kernel[(batch,)](
                log_probs,
                targets,
                lengths,
                losses,
                gradient,
                forwards,
                backwards,
                steps,
                classes,
                targets.shape[1],
                BLOCK=block,
                num_warps=max(1, min(8, block // 128)),
            )
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0][:, None, None], None, None


@triton.jit
def _log_of_three(a, b, c):  # type: ignore[no-untyped-def]
    top = tl.maximum(a, tl.maximum(b, c))
    top = tl.where(top == float("-inf"), 0.0, top)
    return top + tl.log(tl.exp(a - top) + tl.exp(b - top) + tl.exp(c - top))


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    log_probs,
    targets,
    lengths,
    losses,
    gradient,
    forwards,
    backwards,
    steps,
    classes,
    longest,
    BLOCK: tl.constexpr,
):
    """Do one text. A state is a place in the target with blanks around its characters: even ones are blanks."""
    text = tl.program_id(0).to(tl.int64)
    log_probs += text * steps * classes
    gradient += text * steps * classes
    targets += text * longest
    forwards += text * steps * BLOCK
    backwards += text * 2 * BLOCK

    state = tl.arange(0, BLOCK)
    states = 2 * tl.load(lengths + text) + 1
    in_text = state < states
    is_character = in_text & (state % 2 == 1)
    label = tl.load(targets + state // 2, mask=is_character, other=0)
    has_one_before = is_character & (state >= 3)
    has_one_after = is_character & (state + 2 < states)
    label_before = tl.load(targets + state // 2 - 1, mask=has_one_before, other=0)
    label_after = tl.load(targets + state // 2 + 1, mask=has_one_after, other=0)
    skips_to = has_one_before & (label != label_before)  # the blank between equal characters must not be skipped
    skips_from = has_one_after & (label != label_after)

    # 1. Forward: `ahead` is the log-probability of all paths that begin and are in a state now; kept for all steps.
    score = tl.load(log_probs + label, mask=in_text, other=float("-inf"))
    ahead = tl.where(state < 2, score, float("-inf"))
    tl.store(forwards + state, ahead)
    for step in range(1, steps):
        tl.debug_barrier()  # what the other threads stored
        row = forwards + (step - 1) * BLOCK + state
        one = tl.load(row - 1, mask=in_text & (state >= 1), other=float("-inf"))
        two = tl.load(row - 2, mask=skips_to, other=float("-inf"))
        score = tl.load(log_probs + step * classes + label, mask=in_text, other=float("-inf"))
        ahead = _log_of_three(ahead, one, two) + score
        tl.store(forwards + step * BLOCK + state, ahead)

    # 2. The loss: all paths that end in the last character or in the blank after it.
    is_end = in_text & (state >= states - 2)
    ends = tl.where(is_end, ahead, float("-inf"))
    top = tl.max(ends, axis=0)
    counted = tl.where(in_text, top, float("-inf")) > float("-inf")  # nothing is, where the text does not fit
    top = tl.where(top == float("-inf"), 0.0, top)
    total = top + tl.log(tl.sum(tl.exp(ends - top), axis=0))
    tl.store(losses + text, -total)
    total = tl.where(total == float("-inf"), 0.0, total)
    # 3. Backward: `behind` is what is left of the paths, and both together are the gradient.
    behind = tl.where(is_end, 0.0, float("-inf"))
    for back in range(steps):
        step = steps - 1 - back
        ahead = tl.load(forwards + step * BLOCK + state)
        share = tl.exp(ahead + behind - total)
        tl.atomic_add(gradient + step * classes + label, -share, mask=counted)
        score = tl.load(log_probs + step * classes + label, mask=in_text, other=float("-inf"))
        onward = behind + score
        row = backwards + (back % 2) * BLOCK + state  # two rows in turn: nobody writes what another still reads
        tl.store(row, onward)
        tl.debug_barrier()
        one = tl.load(row + 1, mask=state + 1 < states, other=float("-inf"))
        two = tl.load(row + 2, mask=skips_from, other=float("-inf"))
        behind = tl.where(in_text, _log_of_three(onward, one, two), float("-inf"))
