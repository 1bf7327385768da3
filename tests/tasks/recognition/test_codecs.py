from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.errors import CharsetError, ConfigError, DataError
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import make_codec

CHARSET = Charset(("a", "b", "c", " ", "ế", "😀"))
LONGEST = 6
HEADS = ("CTC", "Attn", "Slots")
texts = st.lists(st.text(st.sampled_from(CHARSET.chars), max_size=LONGEST), max_size=8)


def codec(prediction: Any, charset: Charset = CHARSET, longest: int = LONGEST) -> Any:
    return make_codec(prediction, charset, longest)


def ctc_path(ids: np.ndarray) -> np.ndarray:
    """The frames a perfect CTC model would give: every character twice, a blank between."""
    return np.repeat(np.stack([ids, np.zeros_like(ids)], 2).reshape(len(ids), 2 * ids.shape[1]), 2, axis=1)


@pytest.mark.parametrize(
    ("prediction", "ids", "lengths", "names"),
    [
        ("CTC", [[1, 2, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0]], [2, 1, 0], ["[blank]", "a", "b", "c", " ", "ế", "😀"]),
        ("Attn", [[2, 3, 1, 0, 0], [5, 1, 0, 0, 0], [1, 0, 0, 0, 0]], [3, 2, 1], ["[GO]", "[end]", *CHARSET.chars]),
        ("Slots", [[1, 2, 0, 0], [4, 0, 0, 0], [0, 0, 0, 0]], [2, 1, 0], ["[empty]", *CHARSET.chars]),
    ],
)
def test_classes_follow_tao_order(prediction: str, ids: list[Any], lengths: list[int], names: list[str]) -> None:
    made = codec(prediction, longest=4)
    encoded, counts = made.encode(["ab", " ", ""])
    assert encoded.tolist() == ids
    assert counts.tolist() == lengths
    assert encoded.dtype == counts.dtype == np.int64
    assert list(made.class_names) == names
    assert made.num_classes == len(names)
    assert made.target_length == encoded.shape[1]


@pytest.mark.parametrize("prediction", HEADS)
@given(batch=texts)
def test_decode_undoes_encode(prediction: str, batch: list[str]) -> None:
    made = codec(prediction)
    ids, _ = made.encode(batch)
    if prediction == "CTC":
        ids = ctc_path(ids)
    read, confidence = made.decode(ids.astype(np.int32), np.ones(ids.shape, np.float32))
    assert read == batch
    assert confidence.tolist() == [float(bool(text)) for text in batch]


@pytest.mark.parametrize("prediction", HEADS)
@given(batch=texts.filter(bool))
def test_a_batch_decodes_as_its_rows_alone(prediction: str, batch: list[str]) -> None:
    made = codec(prediction)
    ids, _ = made.encode(batch)
    probs = np.random.default_rng(0).random(ids.shape).astype(np.float32)
    read, confidence = made.decode(ids, probs)
    for row in range(len(batch)):
        alone, sure = made.decode(ids[row : row + 1], probs[row : row + 1])
        assert alone == [read[row]]
        assert sure[0] == confidence[row]


@given(batch=texts)
def test_ctc_needs_a_step_more_for_each_equal_neighbour(batch: list[str]) -> None:
    expected = [len(t) + sum(x == y for x, y in pairwise(t)) for t in batch]
    assert codec("CTC").required_steps(batch).tolist() == expected


def test_equal_neighbours_in_different_texts_are_no_repeat() -> None:
    assert codec("CTC").required_steps(["ba", "", "ab"]).tolist() == [2, 0, 2]


def test_attention_needs_a_step_for_the_end_and_slots_need_none() -> None:
    assert codec("Attn").required_steps(["aab", ""]).tolist() == [4, 1]
    assert codec("Slots").required_steps(["aab", ""]).tolist() == [3, 0]


def test_ctc_collapses_runs_and_multiplies_their_first_frames() -> None:
    ids = np.array([[1, 1, 0, 1, 2, 0]])
    probs = np.array([[0.5, 0.9, 0.1, 0.5, 0.8, 0.1]])
    read, confidence = codec("CTC").decode(ids, probs)
    assert read == ["aab"]
    assert confidence[0] == pytest.approx(0.5 * 0.5 * 0.8)
    assert confidence.dtype == np.float32


def test_attention_stops_at_the_first_end_whatever_follows() -> None:
    read, confidence = codec("Attn").decode(np.array([[2, 0, 3, 1, 4, 1]]), np.array([[0.5, 0.1, 0.5, 0.1, 0.1, 0.1]]))
    assert read == ["ab"]
    assert confidence[0] == pytest.approx(0.25)


def test_slots_skip_empty_positions() -> None:
    assert codec("Slots").decode(np.array([[1, 0, 2]]), np.full((1, 3), 0.5))[0] == ["ab"]


@pytest.mark.parametrize("prediction", HEADS)
def test_empty_reading_has_no_confidence(prediction: str) -> None:
    read, confidence = codec(prediction).decode(np.zeros((2, 3), int), np.ones((2, 3)))
    assert read == ["", ""]
    assert confidence.tolist() == [0, 0]


@pytest.mark.parametrize("prediction", HEADS)
def test_decomposed_text_encodes_as_composed(prediction: str) -> None:
    made = codec(prediction)
    composed, decomposed = made.encode(["ế"]), made.encode([unicodedata.normalize("NFD", "ế")])
    assert composed[0].tolist() == decomposed[0].tolist()
    assert made.required_steps([unicodedata.normalize("NFD", "ế")]).tolist() == made.required_steps(["ế"]).tolist()


@pytest.mark.parametrize("text", ["axb", "x", "\U0010ffff", "\ud800", "`"])
@pytest.mark.parametrize("prediction", HEADS)
def test_unknown_character_is_named_with_its_label(prediction: str, text: str) -> None:
    with pytest.raises(CharsetError, match=r"the label .* holds .*, which is not in the character list"):
        codec(prediction).encode(["ab", text])


@pytest.mark.parametrize("prediction", HEADS)
def test_over_long_label_names_the_key_to_raise(prediction: str) -> None:
    with pytest.raises(DataError, match=r"the label 'aaa' has 3 characters and max_label_length is 2: raise dataset"):
        codec(prediction, longest=2).encode(["ab", "aaa"])


def test_label_with_a_space_is_a_label_like_any_other() -> None:
    made = codec("CTC")
    ids, lengths = made.encode(["a b"])
    assert lengths.tolist() == [3]
    assert made.decode(ids, np.ones(ids.shape))[0] == ["a b"]


def test_unknown_head_is_an_error() -> None:
    with pytest.raises(ConfigError, match="unknown prediction head 'ctc'"):
        codec("ctc")
