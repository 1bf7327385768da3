"""What the thread loader does to its process, and undoes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cv2
import pytest

from inkmill.data.loaders import LoadPlan, make_loader


@pytest.fixture(autouse=True)
def threads_of_opencv() -> Iterator[int]:
    before = cv2.getNumThreads()
    cv2.setNumThreads(3)
    yield 3
    cv2.setNumThreads(before)


def test_opencv_has_its_threads_again_when_the_last_loader_is_closed(
    captcha_plan: Callable[..., LoadPlan], threads_of_opencv: int
) -> None:
    train, val = (make_loader(captcha_plan(20), 1, "threads") for _ in range(2))
    suspended = iter(train)
    next(suspended)
    assert cv2.getNumThreads() == 1
    assert len(list(train)) == 3
    assert len(list(val)) == 3
    train.close()
    assert cv2.getNumThreads() == 1
    val.close()
    assert cv2.getNumThreads() == threads_of_opencv
    suspended.close()
    assert cv2.getNumThreads() == threads_of_opencv


def test_a_loader_that_nobody_closed_ends_when_nobody_has_it(
    captcha_plan: Callable[..., LoadPlan], threads_of_opencv: int
) -> None:
    assert len(list(make_loader(captcha_plan(20), 1, "threads"))) == 3
    assert cv2.getNumThreads() == threads_of_opencv
