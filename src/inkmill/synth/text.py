"""What synthetic images say: texts drawn a batch at a time, each a function of its sample's state alone.

Everything that can be drawn lies end to end in one array of characters: word lists, running text, the signs of a price.
A template is a row of lists to draw from; so a batch of texts is one look-up of (list, random number) pairs and one
copy of characters, whatever the templates are. `templates.py` says what there is and how often; `corpora/` holds the
words that the package carries.
"""

from __future__ import annotations

import lzma
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inkmill.data.augment.random_numbers import splitmix64, stream_ids, stream_offsets, uniforms
from inkmill.errors import ConfigError, DataError
from inkmill.synth.characters import CHARACTERS, TONES, VOWELS
from inkmill.synth.params import MAX_CHARACTERS
from inkmill.synth.templates import FIELDS, LINES, WORDS, Edit, Group

Codes = NDArray[np.int16]
"""int16 (B, MAX_CHARACTERS): positions in the character set, -1 after the end."""

LANGUAGES = {"en": 46.0, "vi": 37.0, "shared": 13.0, "random": 4.0}
"""How often the carried languages are drawn; `shared` are numbers, prices, dates, addresses; `random` has every
character equally often, so that none is rare."""

CASES = (0.55, 0.20, 0.22, 0.03)
"""Shares of UPPER, lower, Title and mIxed among texts whose case is free: what signs have."""

_OP = 2000  # number of the random streams, see data.augment.random_numbers
_MOST_SLOTS = 40
_MAX_TEXT_BYTES = 256 << 20
_CORPORA = Path(__file__).parent / "corpora"
_WORD_FIELDS = ("en_word", "en_name", "vi_word")
_RUNNING = ("vi_text",)


@dataclass(frozen=True, slots=True)
class Piece:
    """One thing to draw: a text with how often it is drawn, relative to others of its list."""

    text: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class _Slot:
    """A place of a template: which list fills it, and how often its field is repeated, of which this is number `rank`.

    Of running text, so many words in a row are one slot.
    """

    field: str
    rank: int = 0
    least: int = 1
    most: int = 1
    running: bool = False


@dataclass(frozen=True, slots=True)
class _Template:
    weight: float
    slots: tuple[_Slot, ...]
    free_case: bool
    edit: Edit


class TextSampler:
    """Draws texts.

    Args:
        languages: how often each of the carried ones is drawn ("en", "vi", "shared", "random"); those left out are not.
        lines: share of longer texts, up to `longest` characters.
        texts: text files and how often they are drawn, relative to the languages: UTF-8, where a line is "word TAB
            frequency", or text whose pieces of one to four words (four to fourteen among lines) are drawn.
        characters: those that may be drawn; texts with others are left out.
        longest: characters of the longest text, at most MAX_CHARACTERS; what is longer is cut.

    Attributes:
        notes: what was left out, one sentence each.

    Raises:
        ConfigError: an unknown language, or nothing is left to draw.
        DataError: a text file that cannot be read.
    """

    def __init__(
        self,
        languages: Mapping[str, float] = LANGUAGES,
        lines: float = 0.0,
        texts: Sequence[tuple[str, float]] = (),
        characters: str = CHARACTERS,
        longest: int = MAX_CHARACTERS,
    ) -> None:
        if unknown := [name for name in languages if name not in WORDS]:
            raise ConfigError(f"no texts for {unknown[0]!r}: the carried languages are {', '.join(WORDS)}")
        self.characters, self.longest = characters, min(longest, MAX_CHARACTERS)
        self.notes: list[str] = []
        # 1. What is drawn, and how often.
        files = {f"file:{number}": path for number, (path, _) in enumerate(texts)}
        weights = [weight for _, weight in texts]
        templates = [
            template
            for share, table in ((1 - lines, WORDS), (lines, LINES))
            for template in (*_templates(table, languages, share), *_of_files(files, weights, share, table is LINES))
        ]
        # 2. The lists behind it, without texts that hold other characters; templates that miss a list go.
        lists = _Lists(characters, self.notes)
        used = {slot.field for template in templates for slot in template.slots}
        for name in sorted(used):
            _fill(lists, name, files)
        templates = [one for one in templates if all(lists.has(slot.field) for slot in one.slots)]
        if not templates:
            raise ConfigError(f"no text can be drawn with the {len(characters)} characters: {characters[:40]!r}")
        # 3. Everything as arrays.
        self._lists = lists.packed()
        self._set_templates(templates, lists)
        self._set_letters()

    def _set_templates(self, templates: list[_Template], lists: _Lists) -> None:
        weights = np.array([template.weight for template in templates])
        self._ends = np.cumsum(weights) / weights.sum()
        self._free_case = np.array([template.free_case for template in templates])
        self._edits = np.array([("", "cut", "tone").index(template.edit) for template in templates], np.int8)
        most = max(len(template.slots) for template in templates)
        self._slots = np.full((len(templates), most), -1, np.int16)
        self._ranks, self._least, self._most = (np.zeros_like(self._slots) for _ in range(3))
        self._runs = np.zeros((len(templates), most), np.bool_)
        for number, template in enumerate(templates):
            for place, slot in enumerate(template.slots):
                self._slots[number, place] = lists.number(slot.field)
                self._ranks[number, place] = slot.rank
                self._least[number, place], self._most[number, place] = slot.least, slot.most
                self._runs[number, place] = slot.running
        self._offsets = stream_offsets(stream_ids(_OP, 7))
        self._slot_offsets = stream_offsets(stream_ids(_OP + 1, most))

    def _set_letters(self) -> None:
        """Tables by code, with one more row, for -1."""
        known = {character: code for code, character in enumerate(self.characters)}

        def table(change: Any) -> Codes:
            return np.array([*(known.get(change(c), i) for i, c in enumerate(self.characters)), -1], np.int16)

        self._upper, self._lower = table(str.upper), table(str.lower)
        self._is_letter = np.array([*map(str.isalpha, self.characters), False])
        self._joins = np.array([*(c in "'’" or c.isalpha() for c in self.characters), False])
        self._is_space = np.array([*(c == " " for c in self.characters), False])
        vowels = [(vowel + tone, case) for vowel in VOWELS for tone in TONES for case in (str.lower, str.upper)]
        self._vowel = np.full(len(self.characters) + 1, -1, np.int16)
        self._toned = np.full((2 * len(VOWELS), len(TONES)), -1, np.int16)
        for number, (letter, case) in enumerate(vowels):
            code = known.get(case(unicodedata.normalize("NFC", letter)), -1)
            vowel, tone = number // 2 // len(TONES) * 2 + number % 2, number // 2 % len(TONES)
            self._toned[vowel, tone] = code
            if code >= 0:
                self._vowel[code] = vowel
        self._code_points = np.array([*map(ord, self.characters), 0], np.uint32)

    def sample(self, states: NDArray[np.uint64]) -> Codes:
        """Draw one text for each sample.

        Args:
            states: uint64 (B,), see `data.augment.random_numbers.sample_states`.

        Returns:
            int16 (B, MAX_CHARACTERS); each text depends on its own state alone, and none is empty.
        """
        u = uniforms(states, self._offsets)
        # 1. A template for each.
        template = np.searchsorted(self._ends, u[0], side="right").clip(max=len(self._ends) - 1)
        # 2. A draw for each slot that is filled, and its characters one after the other.
        codes = self._drawn(states, template, u[1])
        # 3. What happens to words on signs: cut at the border, another tone, another case.
        edit = self._edits[template]
        _cut(codes, np.flatnonzero(edit == 1), u[2], u[3])
        self._tone(codes, np.flatnonzero(edit == 2), u[2], u[3])
        return self._cased(codes, np.flatnonzero(self._free_case[template]), u[4], u[5])

    def strings(self, codes: Codes) -> list[str]:
        """Return the texts of codes."""
        points = np.ascontiguousarray(self._code_points[codes])
        texts: list[str] = points.view(f"<U{codes.shape[1]}").ravel().tolist()
        return texts

    def _drawn(self, states: NDArray[np.uint64], template: NDArray[np.int64], repeats: Any) -> Codes:
        lists = self._lists
        # 1. Which list fills which place: of what is repeated, as many places as the sample's number says.
        rows, slots = np.nonzero((self._slots >= 0)[template])
        which = template[rows]
        least = self._least[which, slots]
        count = least + (repeats[rows] * (self._most[which, slots] - least + 1)).astype(np.int16)
        filled = self._ranks[which, slots] < count
        rows, slots, which, count = rows[filled], slots[filled], which[filled], count[filled]
        wanted = self._slots[which, slots]
        # 2. Which entry: all lists share one ladder of cumulated weights, each between its number and the next.
        bits = splitmix64(states[rows] + self._slot_offsets[slots]) >> np.uint64(11)
        u = bits.astype(np.int64) * 2.0**-53
        first = np.searchsorted(lists.ladder, wanted + u, side="right").clip(max=lists.last_of_list[wanted])
        last = np.minimum(first + np.where(self._runs[which, slots], count - 1, 0), lists.last_of_line[first])
        starts = lists.starts[first]
        lengths = lists.stops[last] - starts
        # 3. Where each character comes from and goes to; what is too long is cut.
        ends = np.cumsum(lengths)
        where = np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)
        of_row = np.bincount(rows, lengths, len(states)).astype(np.int64)
        row = np.repeat(rows, lengths)
        column = np.arange(len(row)) - (np.cumsum(of_row) - of_row)[row]
        kept = column < self.longest
        codes = np.full((len(states), MAX_CHARACTERS), -1, np.int16)
        codes[row[kept], column[kept]] = lists.codes[where[kept]]
        # 4. No text ends with a space.
        end = np.minimum(of_row, self.longest) - 1
        every = np.arange(len(states))
        trailing = self._is_space[codes[every, end]] & (end > 0)
        codes[every[trailing], end[trailing]] = -1
        return codes

    def _tone(self, codes: Codes, rows: NDArray[np.int64], u: Any, v: Any) -> None:
        """Give one vowel of some texts any tone."""
        vowels = self._vowel[codes[rows]]
        counts = (vowels >= 0).sum(axis=1)
        rows, vowels, counts = rows[counts > 0], vowels[counts > 0], counts[counts > 0]
        chosen = (u[rows] * counts).astype(np.int64)
        place = (np.cumsum(vowels >= 0, axis=1) > chosen[:, None]).argmax(axis=1)
        vowel = vowels[np.arange(len(rows)), place]
        toned = self._toned[vowel, (v[rows] * len(TONES)).astype(np.int64)]
        codes[rows, place] = np.where(toned >= 0, toned, codes[rows, place])

    def _cased(self, codes: Codes, rows: NDArray[np.int64], u: Any, v: Any) -> Codes:
        """Set some texts in capitals, small letters, Title case or a mix."""
        case = np.searchsorted(np.cumsum(CASES)[:-1], u[rows], side="right")
        # Characters one after the other: most places of the table are empty.
        row, column = np.nonzero(codes[rows] >= 0)
        case, rows, bits = case[row], rows[row], (v[rows] * 2.0**53).astype(np.int64)[row]
        code = codes[rows, column]
        before = np.where(column > 0, codes[rows, column - 1], -1)
        begins = self._is_letter[code] & ~self._joins[before]
        mixed = (bits >> (column % 53)) & 1 == 1
        upper = (case == 0) | ((case == 2) & begins) | ((case == 3) & mixed)
        codes[rows, column] = np.where(upper, self._upper[code], self._lower[code])
        return codes


def _cut(codes: Codes, rows: NDArray[np.int64], u: Any, v: Any) -> None:
    """Take the first, the last or an inner character from some texts of three characters or more."""
    lengths = (codes[rows] >= 0).sum(axis=1)
    rows, lengths = rows[lengths >= 3], lengths[lengths >= 3]
    inner = 1 + (v[rows] * (lengths - 2)).astype(np.int64)
    place = np.where(u[rows] < 1 / 3, 0, np.where(u[rows] < 2 / 3, lengths - 1, inner))
    columns = np.arange(MAX_CHARACTERS)
    source = np.minimum(columns + (columns >= place[:, None]), MAX_CHARACTERS - 1)
    shifted = np.take_along_axis(codes[rows], source, axis=1)
    shifted[:, -1] = -1
    codes[rows] = shifted


@dataclass(frozen=True, slots=True)
class _Packed:
    """All lists in arrays; an entry is a text, or a word of running text."""

    codes: Codes
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    last_of_line: NDArray[np.int64]
    ladder: NDArray[np.float64]
    last_of_list: NDArray[np.int64]


class _Lists:
    """Collects lists of texts that some characters can write."""

    def __init__(self, characters: str, notes: list[str]) -> None:
        self._codes = {character: code for code, character in enumerate(characters)}
        self._notes = notes
        self._numbers: dict[str, int] = {}
        self._flat: list[Codes] = []
        self._size = self._entries = 0
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []

    def has(self, name: str) -> bool:
        return name in self._numbers

    def number(self, name: str) -> int:
        return self._numbers[name]

    def add(self, name: str, pieces: Iterable[Piece], words: bool = False) -> None:
        """Add a list; with `words` its entries are the words of the pieces, drawn several in a row."""
        kept, left_out = [], 0
        for piece in pieces:
            known = bool(piece.text) and all(character in self._codes for character in piece.text)
            kept += [piece] if known else []
            left_out += not known
        if left_out and name not in FIELDS and left_out + len(kept) > 1:
            of = f"{left_out:,} of {left_out + len(kept):,}"
            self._notes.append(f"{of} texts of {name} hold characters that the reader does not know, and are not drawn")
        if not kept:
            return
        sizes = np.array([len(piece.text) for piece in kept])
        stops = self._size + np.cumsum(sizes)
        starts = stops - sizes
        codes = np.array([self._codes[character] for piece in kept for character in piece.text], np.int16)
        weights = np.array([piece.weight for piece in kept])
        last = np.arange(len(kept))
        if words:
            space = self._codes.get(" ", -2)
            ends_word = np.append(codes[1:] == space, [True]) | np.isin(np.arange(len(codes)) + 1, stops - self._size)
            begins_word = np.append([True], codes[:-1] == space) | np.isin(np.arange(len(codes)), starts - self._size)
            line = np.searchsorted(stops, self._size + np.flatnonzero(begins_word), side="right")
            starts = self._size + np.flatnonzero(begins_word)
            stops = self._size + np.flatnonzero(ends_word) + 1
            last = np.searchsorted(line, line, side="right") - 1
            weights = weights[line]
        self._flat.append(codes)
        self._parts.append((starts, stops, self._entries + last, weights))
        self._numbers[name] = len(self._numbers)
        self._size += len(codes)
        self._entries += len(starts)

    def packed(self) -> _Packed:
        starts, stops, last = (np.concatenate([part[column] for part in self._parts]) for column in range(3))
        sizes = [len(part[0]) for part in self._parts]
        ladder = [number + np.cumsum(part[3]) / part[3].sum() for number, part in enumerate(self._parts)]
        return _Packed(np.concatenate(self._flat), starts, stops, last, np.concatenate(ladder), np.cumsum(sizes) - 1)


def _templates(table: Mapping[str, Sequence[Group]], languages: Mapping[str, float], share: float) -> list[_Template]:
    """Return the templates of some languages with their shares of all draws."""
    found = []
    whole = sum(languages.values())
    for language, weight in languages.items():
        of_language = sum(group.share for group in table[language])
        for group in table[language]:
            each = share * weight / whole * group.share / of_language / len(group.templates)
            found += [_parsed(text, each, group) for text in group.templates]
    return [template for template in found if template.weight > 0]


def _of_files(files: Mapping[str, str], weights: Sequence[float], share: float, lines: bool) -> list[_Template]:
    words = "4-14" if lines else "1-4"
    some = zip(files, weights, strict=True)
    return [_parsed(f"{{{name}:{words}}}", share * weight / 100, Group(1, ())) for name, weight in some if share]


def _parsed(template: str, weight: float, group: Group) -> _Template:
    """Return a template as slots: a field once, repeated, or as a run of words; all else as lists of one text."""
    slots: list[_Slot] = []
    for literal, field, times, _ in _formatted(template):
        if literal:
            slots.append(_Slot(literal))
        if not field:
            continue
        least, most = map(int, times.split("-")) if times else (1, 1)
        if _is_running(field):
            slots.append(_Slot(field, 0, least, most, running=True))
            continue
        for rank in range(most):
            slots += [_Slot(" ", rank, least, most)] if rank and field in _WORD_FIELDS else []
            slots.append(_Slot(field, rank, least, most))
    if len(slots) > _MOST_SLOTS:
        raise ValueError(f"{template!r} has {len(slots)} slots, more than {_MOST_SLOTS}")
    return _Template(weight, tuple(slots), group.free_case, group.edit)


def _formatted(template: str) -> Iterator[tuple[str, str, str, Any]]:
    # A file's field has a colon in its name: file:0:1-4.
    for literal, field, times, conversion in Formatter().parse(template):
        name, spec = field or "", times or ""
        if name == "file":
            number, _, spec = spec.partition(":")
            name = f"file:{number}"
        yield literal, name, spec, conversion


def _is_running(field: str) -> bool:
    return field in _RUNNING or field.startswith("file:")


def _fill(lists: _Lists, name: str, files: Mapping[str, str]) -> None:
    """Add the list of a field: carried words, a file, one of `templates.FIELDS`, or the name itself as a text."""
    if name in files:
        lists.add(name, _pieces(Path(files[name]).expanduser()), words=True)
    elif name in _RUNNING:
        lists.add(name, _carried(f"{name}.txt.xz"), words=True)
    elif name in _WORD_FIELDS:
        weighted = "en_name" not in name
        lists.add(name, _carried(f"{name}s.tsv.xz" if weighted else f"{name}s.txt.xz"))
    elif name in FIELDS:
        lists.add(name, map(Piece, FIELDS[name]))
    else:
        lists.add(name, [Piece(name)])


def _carried(name: str) -> Iterator[Piece]:
    for line in lzma.decompress((_CORPORA / name).read_bytes()).decode().splitlines():
        word, _, zipf = line.partition("\t")
        yield Piece(word, 10 ** (float(zipf) / 200) if zipf else 1.0)  # the root of the frequency


def _pieces(path: Path) -> Iterator[Piece]:
    """Yield the lines of a text file, NFC, spaces made single; weights are the roots of frequencies after a TAB."""
    try:
        if path.stat().st_size > _MAX_TEXT_BYTES:
            raise DataError(f"{path}: the text is larger than {_MAX_TEXT_BYTES >> 20} MiB: give a part of it")
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: the text cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the text is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    found = 0
    for line in text.splitlines():
        words, _, frequency = unicodedata.normalize("NFC", line).rpartition("\t")
        if not words or not _is_number(frequency):
            words, frequency = f"{words} {frequency}", "1"
        if words := " ".join(words.split()):
            found += 1
            yield Piece(words, max(float(frequency), 0.0) ** 0.5)
    if not found:
        raise DataError(f"{path}: the text is empty; expected words or lines of text")


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
