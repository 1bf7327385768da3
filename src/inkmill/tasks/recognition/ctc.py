"""What CTC's probabilities say beyond the best class of each step: the text that a search finds, how probable a given
text is, and where its characters lie. A batch at a time; the loops run over time steps.

Graves et al. 2006 ("Connectionist temporal classification") for alignment and probability, Hannun et al. 2014
("First-pass large vocabulary continuous speech recognition using bi-directional recurrent DNNs") for the search.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, without pattern: prefixes are told apart by a polynomial over it, modulo 2^64."""


def log_probabilities(probabilities: NDArray[Any]) -> Floats:
    """Return log p, float64, of (B, T, K) probabilities; a class without any keeps a very small one."""
    return np.log(np.maximum(np.asarray(probabilities, np.float64), 1e-30))


def beam_search(log_probs: Floats, width: int) -> tuple[Ints, Ints]:
    """Return the most probable text of each sequence among those that `width` prefixes lead to.

    Args:
        log_probs: (B, T, K), class 0 the blank.
        width: prefixes that are pursued, and classes that may follow each; 1 is not the greedy reading, for alignments
            of one text are summed.

    Returns:
        ids int64 (B, T) padded with 0, lengths int64 (B,).
    """
    batch, steps, classes = log_probs.shape
    follow = min(width, classes - 1)
    # The classes worth trying at each step: the most probable ones; others cannot come before them in a beam.
    top = np.argpartition(-log_probs[:, :, 1:], follow - 1, axis=2)[:, :, :follow] + 1
    beam = _Beam(batch, width, steps)
    for step in range(steps):
        beam.advance(step, log_probs[:, step], top[:, step])
    best = beam.total().argmax(axis=1)
    rows = np.arange(batch)
    return beam.prefix[rows, best], beam.length[rows, best]


class _Beam:
    """The prefixes of a batch: (B, W) each, the dead ones at log probability -inf."""

    def __init__(self, batch: int, width: int, steps: int) -> None:
        self.blank = np.full((batch, width), -np.inf)  # of the alignments that end in a blank
        self.blank[:, 0] = 0.0
        self.char = np.full((batch, width), -np.inf)  # of those that end in the prefix's last character
        self.last = np.zeros((batch, width), np.int64)
        self.code = np.zeros((batch, width), np.uint64)  # stands for the prefix; 0 for the empty and for dead ones
        self.prefix = np.zeros((batch, width, steps), np.int64)
        self.length = np.zeros((batch, width), np.int64)

    def total(self) -> Floats:
        """Return the log probability of each prefix."""
        total: Floats = np.logaddexp(self.blank, self.char)
        return total

    def advance(self, step: int, log_probs: Floats, top: Ints) -> None:
        """Take one time step: log_probs (B, K), the classes to try (B, M)."""
        batch, width = self.blank.shape
        total = self.total()
        stays_blank = total + log_probs[:, :1]
        stays_char = self.char + np.take_along_axis(log_probs, self.last, 1)
        # (B, W, M): prefix and one character more; a character equal to the last needs a blank between them.
        before = np.where(top[:, None] == self.last[:, :, None], self.blank[:, :, None], total[:, :, None])
        grown = before + np.take_along_axis(log_probs, top, 1)[:, None]
        codes = self.code[:, :, None] * _FACTOR + top[:, None].astype(np.uint64)
        # What grows into a prefix that is there already belongs to that one.
        same = codes.reshape(batch, -1, 1) == self.code[:, None]
        joins = np.where(same, grown.reshape(batch, -1, 1), -np.inf).max(axis=1)
        stays_char = np.logaddexp(stays_char, joins)
        grown = np.where(same.any(axis=2).reshape(grown.shape), -np.inf, grown)
        scores = np.concatenate([np.logaddexp(stays_blank, stays_char), grown.reshape(batch, -1)], axis=1)
        chosen = np.argpartition(-scores, width - 1, axis=1)[:, :width]
        self._take(step, chosen, top, (stays_blank, stays_char, grown, codes))

    def _take(
        self, step: int, chosen: Ints, top: Ints, found: tuple[Floats, Floats, Floats, NDArray[np.uint64]]
    ) -> None:
        """Make the chosen candidates the beam: the first W are the old prefixes, the others have a character more."""
        stays_blank, stays_char, grown, codes = found
        batch, width = chosen.shape
        rows = np.arange(batch)[:, None]
        grows = chosen >= width
        parent = np.where(grows, (chosen - width) // top.shape[1], chosen)
        extra = np.where(grows, (chosen - width) % top.shape[1], 0)
        self.blank = np.where(grows, -np.inf, stays_blank[rows, parent])
        self.char = np.where(grows, grown[rows, parent, extra], stays_char[rows, parent])
        self.last = np.where(grows, top[rows, extra], self.last[rows, parent])
        dead = np.isneginf(self.blank) & np.isneginf(self.char)
        self.code = np.where(grows, codes[rows, parent, extra], self.code[rows, parent])
        self.code[dead] = 0
        self.prefix, self.length = self.prefix[rows, parent], self.length[rows, parent]
        at = np.nonzero(grows)
        self.prefix[(*at, self.length[at])] = self.last[at]
        self.length += grows


def text_log_probability(log_probs: Floats, ids: Ints, lengths: Ints) -> Floats:
    """Return log p(text), summed over its alignments; -inf where the steps cannot hold it.

    Args:
        log_probs: (N, T, K).
        ids: (N, L), padded with 0.
        lengths: (N,).
    """
    emit, skips = _trellis(log_probs, ids)
    alpha = np.full(emit[:, 0].shape, -np.inf)
    alpha[:, :2] = emit[:, 0, :2]
    for step in range(1, emit.shape[1]):
        alpha = np.logaddexp.reduce(_arrivals(alpha, skips)) + emit[:, step]
    return np.logaddexp(*_ends(alpha, lengths))


def first_frames(log_probs: Floats, ids: Ints, lengths: Ints) -> Ints:
    """Return at which step each character of a text begins in its best alignment, int64 (N, L), -1 beyond its length.

    Args as for `text_log_probability`; the text must fit its steps.
    """
    emit, skips = _trellis(log_probs, ids)
    count, steps, states = emit.shape
    alpha = np.full((count, states), -np.inf)
    alpha[:, :2] = emit[:, 0, :2]
    came = np.zeros((steps, count, states), np.int8)
    for step in range(1, steps):
        arrivals = _arrivals(alpha, skips)
        came[step] = arrivals.argmax(axis=0)
        alpha = arrivals.max(axis=0) + emit[:, step]
    in_blank, in_char = _ends(alpha, lengths)
    state = np.where(in_char > in_blank, np.maximum(2 * lengths - 1, 0), 2 * lengths)
    first = np.full(ids.shape, -1, np.int64)
    rows = np.arange(count)
    for step in range(steps - 1, -1, -1):
        in_text = state % 2 == 1
        first[rows[in_text], state[in_text] // 2] = step  # the last write, the earliest step, stays
        state = state - came[step, rows, state]
    return first


def _trellis(log_probs: Floats, ids: Ints) -> tuple[Floats, NDArray[np.bool_]]:
    """Return what each state emits (N, T, 2L+1), blanks around every character, and where two states may be passed."""
    count, length = ids.shape
    states = np.zeros((count, 2 * length + 1), np.int64)
    states[:, 1::2] = ids
    emit: Floats = np.take_along_axis(
        log_probs, np.broadcast_to(states[:, None], (*log_probs.shape[:2], states.shape[1])), 2
    )
    skips = np.zeros(states.shape, np.bool_)
    skips[:, 3::2] = ids[:, 1:] != ids[:, :-1]
    return emit, skips


def _arrivals(alpha: Floats, skips: NDArray[np.bool_]) -> Floats:
    """Return (3, N, S): staying, coming from the state before, and from the one before that where it is allowed."""
    arrivals = np.full((3, *alpha.shape), -np.inf)
    arrivals[0] = alpha
    arrivals[1, :, 1:] = alpha[:, :-1]
    arrivals[2, :, 2:] = np.where(skips[:, 2:], alpha[:, :-2], -np.inf)
    return arrivals


def _ends(alpha: Floats, lengths: Ints) -> tuple[Floats, Floats]:
    """Return the log probability of ending in the last blank, and in the last character."""
    rows = np.arange(len(alpha))
    in_char = np.where(lengths > 0, alpha[rows, np.maximum(2 * lengths - 1, 0)], -np.inf)
    return alpha[rows, 2 * lengths], in_char
