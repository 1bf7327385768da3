from __future__ import annotations

import pytest

from inkmill.deploy.quantize.compare import drop


@pytest.mark.parametrize(("lost", "count"), [(1, 100), (1, 50), (1, 20), (3, 300), (7, 10)])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_loss_at_the_bound_is_within_it(lost: int, count: int, labelled: bool) -> None:
    right, wrong = ["a"] * count, ["b"] * lost + ["a"] * (count - lost)
    assert drop(right, wrong, right if labelled else None) == lost / count
    assert drop(wrong, right, right) == -lost / count  # int8 may read better


def test_only_what_the_labels_say_counts_where_there_are_labels() -> None:
    assert drop(["a", "x"], ["a", "y"], ["a", "b"]) == 0
    assert drop(["a", "x"], ["a", "y"], None) == 0.5
