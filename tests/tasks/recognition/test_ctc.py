from __future__ import annotations

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.codecs import CtcCodec
from inkmill.tasks.recognition.ctc import beam_search, first_frames, log_probabilities, text_log_probability

CODEC = CtcCodec(Charset(("a", "b")), 4)


def random_probabilities(seed: int, batch: int, steps: int, classes: int = 3) -> np.ndarray:
    sharp = np.random.default_rng(seed).normal(size=(batch, steps, classes)) * 2
    return np.exp(sharp) / np.exp(sharp).sum(axis=2, keepdims=True)


def by_enumeration(probabilities: np.ndarray) -> dict[tuple[int, ...], tuple[float, float, tuple[int, ...]]]:
    """Every text of one sequence (T, K): its probability, and its best alignment with that one's."""
    found: dict[tuple[int, ...], tuple[float, float, tuple[int, ...]]] = defaultdict(lambda: (0.0, 0.0, ()))
    for path in product(range(probabilities.shape[1]), repeat=len(probabilities)):
        p = float(np.prod(probabilities[np.arange(len(path)), path]))
        text = tuple(c for n, c in enumerate(path) if c and (n == 0 or path[n - 1] != c))
        total, best, alignment = found[text]
        found[text] = (total + p, max(best, p), path if p > best else alignment)
    return found


def padded(text: tuple[int, ...], length: int) -> np.ndarray:
    return np.array([[*text, *[0] * (length - len(text))]], np.int64)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_a_wide_beam_finds_the_most_probable_text_of_all(seed: int, steps: int) -> None:
    probabilities = random_probabilities(seed, 3, steps)
    ids, lengths = beam_search(log_probabilities(probabilities), width=64)
    for row in range(3):
        truth = by_enumeration(probabilities[row])
        found = tuple(ids[row, : lengths[row]].tolist())
        assert truth[found][0] == pytest.approx(max(p for p, _, _ in truth.values()))


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_probability_and_alignment_of_every_text_are_those_of_enumeration(seed: int, steps: int) -> None:
    probabilities = random_probabilities(seed, 1, steps)
    log_probs = log_probabilities(probabilities)
    for text, (total, _, alignment) in by_enumeration(probabilities[0]).items():
        ids, lengths = padded(text, steps + 1), np.array([len(text)])
        assert text_log_probability(log_probs, ids, lengths)[0] == pytest.approx(np.log(total))
        starts = [n for n, c in enumerate(alignment) if c and (n == 0 or alignment[n - 1] != c)]
        assert first_frames(log_probs, ids, lengths)[0].tolist() == [*starts, *[-1] * (steps + 1 - len(text))]


def test_a_text_that_its_steps_cannot_hold_is_impossible() -> None:
    log_probs = log_probabilities(random_probabilities(0, 1, 2))
    assert text_log_probability(log_probs, np.array([[1, 1]]), np.array([2]))[0] == -np.inf  # needs a blank between


def test_the_beam_sums_what_the_best_path_misses() -> None:
    probabilities = np.array([[[0.4, 0.3, 0.3], [0.4, 0.35, 0.25]]])  # best path: blank blank, 0.16; "a": 0.365
    ids, lengths = beam_search(log_probabilities(probabilities), width=2)
    assert ids[0, : lengths[0]].tolist() == [1]


def test_rows_of_a_batch_do_not_depend_on_one_another() -> None:
    log_probs = log_probabilities(random_probabilities(3, 8, 12, classes=9))
    together, lengths = beam_search(log_probs, width=5)
    for row in range(8):
        alone, length = beam_search(log_probs[row : row + 1], width=5)
        assert alone[0].tolist() == together[row].tolist()
        assert length[0] == lengths[row]
