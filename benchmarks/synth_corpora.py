"""Makes the word lists and the running text that the package carries (src/inkmill/synth/corpora) from their sources.

    python benchmarks/synth_corpora.py SOURCES [OUT]

SOURCES holds en_wordfreq.tsv and vi_wordfreq.tsv (word, TAB, Zipf frequency; PyPI wordfreq 3.1), en_words.txt (Debian
wamerican) and vi_wiki.txt (one paragraph of the Vietnamese Wikipedia a line). What is carried stands in the README
beside the lists; the same sources give the same files.
"""

from __future__ import annotations

import lzma
import re
import sys
import unicodedata
import zlib
from pathlib import Path

from inkmill.synth.characters import CHARACTERS

ENGLISH_WORDS = 40_000
NAMES = 8_000
TEXT_BYTES = 1_000_000
_KNOWN = frozenset(CHARACTERS)


def words(path: Path, most: int) -> str:
    """Return the commonest words that the reader's characters can write: word, TAB, Zipf frequency times 100."""
    lines = []
    for line in path.read_text("utf-8").splitlines():
        word, zipf = unicodedata.normalize("NFC", line).split("\t")
        if _KNOWN.issuperset(word):
            lines.append(f"{word}\t{round(float(zipf) * 100)}")
    return "\n".join(lines[:most]) + "\n"


def names(path: Path) -> str:
    """Return proper names: the capitalised words, a fixed choice of them."""
    found = [word for word in path.read_text("utf-8").split() if re.fullmatch("[A-Z][a-z]{2,}", word)]
    return "\n".join(sorted(sorted(found, key=_hash)[:NAMES])) + "\n"


def running_text(path: Path) -> str:
    """Return a fixed choice of paragraphs of 60 to 400 characters without foreign ones, spaces made single."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        paragraph = " ".join(unicodedata.normalize("NFC", line).split())
        if 60 <= len(paragraph) <= 400 and _KNOWN.issuperset(paragraph):
            found.append(paragraph)
    chosen, size = [], 0
    for paragraph in sorted(found, key=_hash):
        size += len(paragraph.encode()) + 1
        if size > TEXT_BYTES:
            break
        chosen.append(paragraph)
    return "\n".join(chosen) + "\n"


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())


def main() -> None:
    """Write the four files."""
    sources = Path(sys.argv[1])
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "src/inkmill/synth/corpora")
    made = {
        "en_words.tsv.xz": words(sources / "en_wordfreq.tsv", ENGLISH_WORDS),
        "vi_words.tsv.xz": words(sources / "vi_wordfreq.tsv", 1 << 20),
        "en_names.txt.xz": names(sources / "en_words.txt"),
        "vi_text.txt.xz": running_text(sources / "vi_wiki.txt"),
    }
    for name, text in made.items():
        (out / name).write_bytes(lzma.compress(text.encode(), preset=9))
        print(f"{name}: {len(text.splitlines()):,} lines, {(out / name).stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
