"""Targets of a batch as strings, and as the objects they stand for."""

from __future__ import annotations

import pytest

from inkmill.data.types import Labels, Target, Text, Texts, as_targets


def test_texts_are_a_sequence_of_targets() -> None:
    texts = Texts(["a", "b", "c"])
    assert len(texts) == 3
    assert texts[1] == Text("b")
    assert texts[1:] == [Text("b"), Text("c")]
    assert texts == [Text("a"), Text("b"), Text("c")]
    assert [Text("a")] != texts
    assert texts == Texts(["a", "b", "c"])
    assert list(reversed(texts)) == [Text("c"), Text("b"), Text("a")]
    with pytest.raises(TypeError, match="unhashable"):
        hash(texts)


@pytest.mark.parametrize("targets", [[], [Text("a")], [Text("a"), Labels(("x",))], [Labels(())]])
def test_targets_stay_what_they_are(targets: list[Target]) -> None:
    row = as_targets(iter(targets))
    assert row == targets
    assert isinstance(row, Texts) == (targets == [Text("a")])
