"""Sampling: from text and random numbers to the rows of the table, for a batch at a time.

Every number hangs on the sample's state, a hash of (seed, epoch, index), so a row is the same in any batch, worker or
rank. The same lines run with NumPy on a CPU and with torch on the device that trains. What a sample looks like is
decided in `style`; here its letters are chosen, set and placed, and all is put into one table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from inkmill.data.augment.random_numbers import stream_ids, stream_offsets, uniforms
from inkmill.synth import style
from inkmill.synth.atlas import FontTable
from inkmill.synth.layout import Run, Style, look_at, places_of, set_run
from inkmill.synth.params import COLUMNS, MAX_CHARACTERS, GroundTable, SynthParams
from inkmill.synth.style import Draws

OTHER_CHARACTERS = 24
"""Letters of the other text of which some may show at an edge."""
_BESIDE = 8  # of them stand on the label's own line, all of them above or below it

_EASY = 0.35
"""Share of samples without effects and hardly any distortion: what is too random teaches nothing."""
_FIRST_OP = 1000  # of the streams of random numbers; augmentation's ops count from 0
_NUMBERS = 256  # random numbers a sample, beside those of the letters
_LETTER_NUMBERS = 4  # random numbers a letter
_FONT_TRIES = 8


@dataclass(frozen=True, eq=False)
class SynthSampler:
    """Samples rows for one set of fonts and grounds.

    Attributes:
        fonts: of the atlas.
        grounds: the bank of grounds; its pictures are not read.
        widest: number of the font with the most characters, for text that none of the tried fonts can write.
        offsets: int64, of all streams of random numbers, as the same kind of numbers as the states.
        counting: int64 (MAX_CHARACTERS,), 0, 1, 2 …
    """

    fonts: FontTable
    grounds: GroundTable
    widest: int
    offsets: Any
    counting: Any

    @classmethod
    def of(cls, fonts: FontTable, grounds: GroundTable) -> SynthSampler:
        """Return a sampler that works with NumPy."""
        count = _NUMBERS + _LETTER_NUMBERS * (MAX_CHARACTERS + OTHER_CHARACTERS)
        ids = [stream for op in range(math.ceil(count / 64)) for stream in stream_ids(_FIRST_OP + op, 64)]
        widest = int(fonts.covered.sum(axis=1).argmax())
        return cls(fonts, grounds, widest, stream_offsets(ids[:count]), np.arange(MAX_CHARACTERS))

    def on(self, device: Any) -> SynthSampler:
        """Return the same sampler with its tables on a torch device."""
        import torch

        def moved(table: Any) -> Any:
            parts = {
                name: torch.from_numpy(part).to(device) for name, part in vars(table).items() if name != "pictures"
            }
            return type(table)(**parts, **({"pictures": table.pictures} if "pictures" in vars(table) else {}))

        offsets = torch.from_numpy(self.offsets.view(np.int64)).to(device)
        counting = torch.from_numpy(self.counting).to(device)
        return SynthSampler(moved(self.fonts), moved(self.grounds), self.widest, offsets, counting)

    def sample(self, xp: Any, states: Any, codes: Any, others: Any) -> SynthParams:
        """Sample the rows of a batch.

        Args:
            xp: numpy or torch, whichever the other arguments and the sampler's tables are of.
            states: (B,) of `random_numbers.keyed_states`, one a sample.
            codes: int (B, L), L <= MAX_CHARACTERS, the texts as positions in the character set; -1 after their ends.
            others: int (B, OTHER_CHARACTERS), other text, of which some shows at the edges of some images.

        Returns:
            Rows on the same device. Their codes differ from the given ones where the font writes capitals only, and
            where no tried font has a character, which is then left out: a loader counts both.
        """
        length = codes.shape[1]
        letters = _LETTER_NUMBERS * (length + OTHER_CHARACTERS)
        numbers = uniforms(states, self.offsets[: _NUMBERS + letters])
        draws = Draws(xp, numbers[:_NUMBERS])
        jitter = numbers[_NUMBERS:].reshape(_LETTER_NUMBERS, length + OTHER_CHARACTERS, -1).swapaxes(1, 2) - 0.5
        easy = draws.chance(_EASY)
        font, codes = self._choose_font(xp, draws, codes)
        # 1. Letters, and strokes that make them larger.
        set_as = style.letters_style(draws, easy)
        text = self._letters(xp, font, codes)
        run = set_run(xp, set_as, text.advances, text.ink, text.shown, text.drawn)
        columns = style.strokes(draws, easy)
        glyphs, places = self._placed(xp, draws, easy, set_as, font, text, run, others, jitter)
        # 2. How they are looked at.
        reach = columns["weight"][0] + columns["outline"][0]
        box = (run.box[0] - reach, run.box[1] - reach, run.box[2] + reach, run.box[3] + reach)
        view = style.view_of(draws, easy, box)
        matrix, aspect = look_at(xp, view, box)
        # 3. What is behind them, and colours that can be told from that.
        columns |= style.plate_of(draws, easy, box)
        ground, as_it_is, deviation = style.ground_of(draws, easy, self.grounds, aspect)
        columns |= ground
        columns |= style.colours_of(draws, columns, as_it_is, deviation)
        columns |= {
            "font": [font],
            "seed": [xp.floor(draws.unit() * 2**24)],
            "aspect": [aspect],
            "matrix": [entry for row in matrix for entry in row],
            "wave": list(view.wave),
            "arc": [view.curvature, view.middle],
            "other_opacity": [1.0],
        }
        # 4. One table.
        zero = 0.0 * aspect
        values = xp.stack([zero + number for name in COLUMNS for number in columns[name]], axis=1)
        padded = xp.where(self.counting < length, codes[:, xp.clip(self.counting, None, length - 1)], -1)
        return SynthParams(
            xp.asarray(values, dtype=xp.float32),
            xp.asarray(padded, dtype=xp.int16),
            xp.asarray(glyphs, dtype=xp.int32),
            xp.asarray(places, dtype=xp.float32),
        )

    def _choose_font(self, xp: Any, draws: Draws, codes: Any) -> tuple[Any, Any]:
        """Return each text's font, (B,), and what it writes of the text: (B, L), left-aligned, -1 after its end."""
        counting = self.counting[: codes.shape[1]]
        shown, safe = codes >= 0, xp.asarray(xp.clip(codes, 0, None), dtype=xp.int64)
        upper = xp.asarray(self.fonts.upper[safe], dtype=xp.int64)
        # 1. The first of some random fonts that has all characters.
        chosen = self.widest + 0 * safe[:, 0]
        for _ in range(_FONT_TRIES):  # the first try comes last, and so wins
            tried = xp.clip(xp.searchsorted(self.fonts.chances, draws.unit()), None, len(self.fonts) - 1)
            written = xp.where(self.fonts.caps_only[tried][:, None], upper, safe)
            complete = (self.fonts.covered[tried[:, None], written] | ~shown).all(axis=1)
            chosen = xp.where(complete, tried, chosen)
        # 2. What it has of the text, moved together.
        written = xp.where(self.fonts.caps_only[chosen][:, None], upper, safe)
        kept = self.fonts.covered[chosen[:, None], written] & shown
        order = xp.argsort(xp.where(kept, counting, counting + len(counting)), axis=1)
        rows = xp.cumsum(1 + 0 * chosen, axis=0) - 1
        return chosen, xp.where(kept, written, -1)[rows[:, None], order]

    def _letters(self, xp: Any, font: Any, codes: Any) -> _Letters:
        """Return what is known of letters of a font, given as codes (B, L)."""
        safe = xp.asarray(xp.clip(codes, 0, None), dtype=xp.int64)
        which = font[:, None], safe
        shown = (codes >= 0) & self.fonts.covered[which]
        glyphs = xp.where(shown, self.fonts.glyphs[which], -1)
        return _Letters(glyphs, self.fonts.advances[which], self.fonts.ink[which], shown, glyphs >= 0)

    def _placed(
        self,
        xp: Any,
        draws: Draws,
        easy: Any,
        set_as: Style,
        font: Any,
        text: _Letters,
        run: Run,
        others: Any,
        jitter: Any,
    ) -> tuple[Any, Any]:
        """Return the glyphs of a batch, (B, G), and their places, (B, G, 8): the label's, and other text around it."""
        # 1. The label; some of it is not as straight as a font is.
        unruly = xp.where(draws.chance(0.12) & ~easy, draws.uniform(0.2, 1), 0.0)[:, None]
        length = run.pens.shape[1]
        along, up, turn, grow = (unruly * numbers[:, :length] for numbers in jitter)
        parts = [(text, set_as, run.pens + 0.06 * along, 0.16 * up, 0.35 * turn, 1 + 0.25 * grow, 0.0)]
        # 2. Words before or after it, on its line.
        neighbours = self._letters(xp, font, others)
        left, top, right, bottom = run.box
        beside = neighbours.first(_BESIDE)
        word = set_run(xp, set_as, beside.advances, beside.ink, beside.shown, beside.drawn)
        gap, coin = draws.uniform(0.22, 0.6), draws.unit()
        start = xp.where(coin < 0.1, left - gap - word.box[2], right + gap - word.box[0])
        beside = beside.only(coin < 0.22)
        parts.append((beside, set_as, word.pens + start[:, None], 0.0, 0.0, 1.0, 0.0))
        # 3. A line above or below, in the same style or in another size and colour.
        same, coin = draws.chance(0.7), draws.unit()
        size = xp.where(same, 1.0, draws.log_uniform(0.5, 1.7))
        line_style = Style(set_as.tracking, set_as.stretch, set_as.slant, size)
        line = set_run(xp, line_style, neighbours.advances, neighbours.ink, neighbours.shown, neighbours.drawn)
        gap = draws.log_uniform(0.04, 0.4)
        start = left - line.box[0] - draws.unit() * xp.clip(line.width - (right - left), 0, None)
        v = xp.where(coin < 0.16, top - gap - line.box[3], bottom + gap - line.box[1])
        neighbours = neighbours.only(coin < 0.34)
        layer = xp.where(same, 0.0, 1.0)[:, None]
        parts.append((neighbours, line_style, line.pens + start[:, None], v[:, None], 0.0, 1.0, layer))
        # 4. Together.
        glyphs, places = [], []
        for letters, how, u, v, turn, grow, layer in parts:
            glyphs.append(letters.glyphs)
            zero = 0.0 * u
            places.append(xp.stack(places_of(xp, how, u, zero + v, zero + turn, zero + grow, zero + layer), axis=2))
        return xp.concatenate(glyphs, axis=1), xp.concatenate(places, axis=1)


@dataclass
class _Letters:
    """Letters of a font, (B, L): glyphs, advances, ink, which belong to the text, which of those have an outline."""

    glyphs: Any
    advances: Any
    ink: Any
    shown: Any
    drawn: Any

    def first(self, count: int) -> _Letters:
        """Return the first letters of each row."""
        return _Letters(*(part[:, :count] for part in vars(self).values()))

    def only(self, rows: Any) -> _Letters:
        """Return them without glyphs in all but some rows, bool (B,)."""
        there = rows[:, None]
        return _Letters(
            self.glyphs * there + (~there) * -1, self.advances, self.ink, self.shown & there, self.drawn & there
        )
