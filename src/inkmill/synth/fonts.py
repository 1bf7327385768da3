"""Font files: where they lie, what each can write, and a report of both.

Fonts come from folders of the user, from the system, or from the package, which carries a few families under the SIL
Open Font License so that synthetic text works at once. A font takes part with the characters that it has; what it lacks
and what cannot be read is in the report, never an error of a whole run.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from inkmill.errors import DataError, MissingExtraError
from inkmill.logs import silence_logging

CARRIED = Path(__file__).parent / "carried_fonts"
"""The families that the package carries, each with its licence."""

SUFFIXES = (".ttf", ".otf", ".ttc", ".otc")
MAX_FILES = 20_000
MAX_FILE_BYTES = 64 << 20
"""Largest font file; a font of all Chinese characters takes half of it."""
MAX_FACES = 32
"""Most faces of a collection (.ttc)."""


@dataclass(frozen=True, slots=True)
class Face:
    """One face of a font file, as its tables describe it.

    Attributes:
        number: of the face within the file, 0 in all but collections.
        name: family and style.
        code_points: of all characters that it maps to a glyph.
    """

    number: int
    name: str
    code_points: frozenset[int]


def system_folders() -> list[Path]:
    """Return the folders in which this system keeps its fonts, those that exist."""
    home = str(Path.home())
    if sys.platform == "win32":
        windows = os.environ.get("WINDIR", "C:/Windows")
        folders = [f"{windows}/Fonts", f"{home}/AppData/Local/Microsoft/Windows/Fonts"]
    elif sys.platform == "darwin":
        folders = ["/System/Library/Fonts", "/Library/Fonts", f"{home}/Library/Fonts"]
    else:
        folders = ["/usr/share/fonts", "/usr/local/share/fonts", f"{home}/.local/share/fonts", f"{home}/.fonts"]
    return [Path(folder) for folder in folders if Path(folder).is_dir()]


def find_fonts(places: Iterable[str | Path]) -> list[Path]:
    """Return the font files of some files and folders, searched with their subfolders, in the order of their paths.

    Raises:
        DataError: a place that does not exist, no font at all, or more than MAX_FILES.
    """
    found: set[Path] = set()
    given = [Path(place) for place in places]
    for place in given:
        if not place.exists():
            raise DataError(f"no font file or folder {place}")
        inside = [place] if place.is_file() else (path for path in place.rglob("*") if path.is_file())
        for path in inside:
            if path.suffix.lower() in SUFFIXES:
                found.add(path)
            if len(found) > MAX_FILES:
                raise DataError(f"{place} holds more than {MAX_FILES:,} fonts: name a folder with fewer")
    if not found:
        names = ", ".join(map(str, given)) or "no folder"
        raise DataError(f"no font in {names}: expected files that end in {', '.join(SUFFIXES)}")
    return sorted(found)


def read_faces(data: bytes) -> list[Face]:
    """Return the faces of a font file.

    Raises:
        DataError: it is no font, or one that cannot be read.
        MissingExtraError: fontTools is not installed.
    """
    try:
        from fontTools.ttLib import TTCollection, TTFont
    except ImportError:
        raise MissingExtraError("fonttools", "train", "reading fonts") from None
    try:
        with silence_logging(logging.CRITICAL):  # what is wrong with a font stands in the report
            file = io.BytesIO(data)
            fonts = TTCollection(file, lazy=True).fonts if data[:4] == b"ttcf" else [TTFont(file, lazy=True)]
            faces = []
            for number, font in enumerate(fonts[:MAX_FACES]):
                name = font["name"].getBestFullName() or "without a name"
                faces.append(Face(number, str(name), frozenset(font.getBestCmap() or {})))
            return faces
    except Exception as error:  # fontTools has no class of its own for a broken table
        raise DataError(f"cannot be read as a font ({type(error).__name__}: {error})") from error


@dataclass(frozen=True, slots=True)
class FontReport:
    """What became of one face, or of a file that has none.

    Attributes:
        file: name of the file.
        name: family and style; empty where the file cannot be read.
        missing: the wanted characters that it does not have or draws as nothing or as another character.
        caps_only: its small letters are capitals, so its labels are written in capitals.
        problem: why it is left out altogether; empty for a font that takes part.
    """

    file: str
    name: str
    missing: str
    caps_only: bool
    problem: str


def report_text(reports: Sequence[FontReport], characters: str) -> str:
    """Return a report on fonts for people: a summary, and a line for each font that is not complete.

    Args:
        reports: of all faces.
        characters: that were wanted.
    """
    used = [report for report in reports if not report.problem]
    complete = [report for report in used if not report.missing]
    capitals = sum(report.caps_only for report in used)
    lines = [
        f"{len(used)} of {len(reports)} fonts are used, {len(complete)} with all {len(characters)} characters, "
        f"{capitals} write capitals only"
    ]
    for report in reports:
        if report.problem:
            lines.append(f"  {report.name or report.file}: left out: {report.problem}")
        elif report.missing:
            lines.append(f"  {report.name}: lacks {_abridged(report.missing)}")
    have = {character: sum(character not in report.missing for report in used) for character in characters}
    rare = sorted((number, character) for character, number in have.items() if number < len(used) / 10)
    if rare and used:
        marks = ", ".join(f"{mark!r} ({number})" for number, mark in rare[:40])
        lines.append(f"  in less than a tenth of them: {marks}")
    return "\n".join(lines)


def _abridged(characters: str, limit: int = 40) -> str:
    return characters if len(characters) <= limit else f"{characters[:limit]}… ({len(characters)} characters)"
