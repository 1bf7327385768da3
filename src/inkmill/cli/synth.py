"""`inkmill synth`: synthetic text to look at and to keep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inkmill.cli.options import SpecFile, arguments, load, make_console, split
from inkmill.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from inkmill.config.spec import Spec
    from inkmill.synth.engine import Settings

_SHEET = 120
_PICTURES = (".png", ".jpg")


def synth(
    given: Annotated[
        list[str] | None,
        arguments(
            "DESTINATION ", "A picture (.png, .jpg) to look at, a .txt file for a report on fonts, or a folder to keep."
        ),
    ] = None,
    spec: SpecFile = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="How many.", show_default="120 on a sheet, 10,000 in a set")
    ] = None,
    to: Annotated[
        str, typer.Option("--to", metavar="KIND", help="A data set's form, as of convert: shards, lmdb, tsv ...")
    ] = "shards",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Another one gives other samples.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the data set that is there.")] = False,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Processes that draw.", show_default="CPUs")
    ] = None,
) -> None:
    """Draw synthetic text as dataset.synthetic describes it, and keep it.

    A sheet shows samples as the model of the spec would meet them, and their texts are printed.
    A data set holds JPEG images at their own size with their texts, and training on it needs no fonts.
    The report says which fonts are used, what each lacks, and why others are left out.
    """
    positional, overrides = split(given)
    if len(positional) != 1:
        raise ConfigError(
            "synth takes one DESTINATION: a .png or .jpg file for a sheet, a .txt file for a report on fonts, or a "
            "folder for a data set"
        )
    destination, loaded = Path(positional[0]), load(spec, overrides)

    from inkmill.synth.characters import CHARACTERS
    from inkmill.synth.engine import Settings
    from inkmill.synth.params import MAX_CHARACTERS

    longest = min(MAX_CHARACTERS, loaded.dataset.max_label_length)
    settings = Settings(loaded.dataset.synthetic, _characters(loaded) or CHARACTERS, longest)
    console = make_console()
    if destination.suffix.lower() in _PICTURES:
        _sheet(console, loaded, settings, destination, samples or _SHEET, seed)
    elif destination.suffix.lower() == ".txt":
        _report(console, settings, destination)
    elif destination.suffix:
        raise ConfigError(
            f"{destination}: a sheet is a .png or .jpg file, a report on fonts a .txt file, and a data set a folder "
            "without a suffix"
        )
    else:
        _set(console, settings, destination, samples or 10_000, to, seed, overwrite, workers)


def _characters(spec: Spec) -> str:
    """Return the characters of the spec's list, empty where it names none."""
    if not spec.dataset.character_list_file:
        return ""
    from inkmill.tasks.recognition.charset import Charset

    return "".join(Charset.from_file(spec.dataset.character_list_file).chars)


def _sheet(console: Console, spec: Spec, settings: Settings, file: Path, count: int, seed: int) -> None:
    import cv2

    from inkmill.files import write_bytes_atomic
    from inkmill.synth.engine import open_engine
    from inkmill.synth.sheet import draw_samples, sheet
    from inkmill.tasks.base import input_resize

    engine = open_engine(settings)
    images, texts, aspects = draw_samples(engine, input_resize(spec.model), seed, count)
    _, data = cv2.imencode(file.suffix.lower(), sheet(images, aspects)[..., ::-1])
    write_bytes_atomic(file, bytes(data))
    for number, text in enumerate(texts):
        typer.echo(f"{number}\t{text}")
    for line in (*engine.notes, f"{count} samples on {file}"):
        console.print(line, markup=False, highlight=False)


def _report(console: Console, settings: Settings, file: Path) -> None:
    from inkmill.files import write_text_atomic
    from inkmill.synth.atlas import build_atlas
    from inkmill.synth.fonts import CARRIED, find_fonts, report_text

    atlas = build_atlas(find_fonts(settings.spec.fonts or [CARRIED]), settings.characters)
    text = report_text(atlas.reports, settings.characters)
    write_text_atomic(file, text + "\n")
    console.print(f"{text.splitlines()[0]}: {file}", markup=False, highlight=False)


def _set(
    console: Console,
    settings: Settings,
    folder: Path,
    count: int,
    to: str,
    seed: int,
    overwrite: bool,
    workers: int | None,
) -> None:
    from inkmill.cli.progress import progress_bar
    from inkmill.data.jobs.convert import convert
    from inkmill.synth.source import SyntheticSource

    source = SyntheticSource(settings, count, seed, "jpeg")
    notes = source.engine.notes  # opened here, so that the workers find the fonts' letters on the disk
    with progress_bar(console, "drawing") as progress:
        report = convert(source, folder, kind=to, workers=workers, overwrite=overwrite, progress=progress)
    for line in (*notes, str(report)):
        console.print(line, markup=False, highlight=False)
