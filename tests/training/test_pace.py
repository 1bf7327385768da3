"""How far the host runs ahead of a GPU, and what it does meanwhile."""

from __future__ import annotations

from time import perf_counter, process_time

import pytest
import torch

from inkmill.training.pace import AHEAD_S, Pace, steps_ahead

GPU_HZ = 2e9


@pytest.mark.parametrize(("step_s", "steps"), [(0.0, 51), (0.003, 17), (0.02, 3), (AHEAD_S, 2), (0.06, 1), (60.0, 1)])
def test_the_host_may_be_ahead_by_a_time_and_at_least_a_step(step_s: float, steps: int) -> None:
    assert steps_ahead(step_s) == steps


def test_a_cpu_has_nothing_to_wait_for() -> None:
    pace = Pace(torch.device("cpu"))
    for _ in range(100):
        pace.issued()
    assert not pace._ends


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_host_sleeps_while_the_gpu_works_and_keeps_it_working() -> None:
    device = torch.device("cuda")
    pace = Pace(device)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(41)]
    torch.cuda.synchronize()
    marks[0].record()
    wall, busy, behind = perf_counter(), process_time(), []
    for mark in marks[1:]:
        torch.cuda._sleep(int(GPU_HZ * 0.03))
        mark.record()
        pace.issued()
        behind.append(sum(not mark.query() for mark in marks))
    torch.cuda.synchronize()
    wall, busy = perf_counter() - wall, process_time() - busy
    assert max(behind[20:]) <= 3, behind
    assert busy < wall / 4, (busy, wall)
    assert marks[0].elapsed_time(marks[-1]) > 900 * wall  # ms and s: the GPU hardly ever waited
