"""Captchas that tests of training may write beside, and a power cut in the middle of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook


@pytest.fixture(scope="session")
def captchas(writable_captchas: Path) -> Path:
    """The captchas that these tests write beside."""
    return writable_captchas


class PowerCutError(RuntimeError):
    """The power went out."""


@pytest.fixture
def power_cut() -> Callable[[int], AbstractContextManager[None]]:
    """Interrupts the run in a block right before its optimiser step number `step`, counted from 0."""

    @contextmanager
    def cut(step: int) -> Iterator[None]:
        steps = count()

        def end_at_step(*_: object) -> None:
            if next(steps) == step:
                raise PowerCutError

        # A hook of torch's that runs before every step of every optimiser: nothing of the loop needs to be known.
        hook = register_optimizer_step_pre_hook(end_at_step)
        try:
            with pytest.raises(PowerCutError):
                yield
        finally:
            hook.remove()

    return cut
