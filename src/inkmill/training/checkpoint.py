"""Checkpoints of training: written whole or not at all, found again by themselves, loaded without running code."""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path
from typing import Any

import torch

from inkmill.crypt import Key, sealed
from inkmill.errors import ConfigError, ModelFileError, OutputError
from inkmill.files import write_bytes_atomic
from inkmill.modelfile.torch_file import load_checkpoint

LATEST = "ocr_model_latest.pth"
_NAME = re.compile(r"model_epoch_(\d+)_step_(\d+)\.pth")


def save_checkpoint(
    folder: Path,
    state: dict[str, Any],
    epoch: int,
    step: int,
    keep: int,
    key: Key | None = None,
    spare: Path | None = None,
) -> Path:
    """Write `model_epoch_EEE_step_SSSSS.pth`, point the latest link at it, and delete all but the newest `cache`.

    Args:
        folder: the results folder of training.
        state: tensors and plain values only, so that it loads with weights_only=True.
        epoch: epochs that are complete.
        step: optimiser steps done.
        keep: how many checkpoints stay.
        key: encrypts the file.
        spare: a checkpoint that stays too: the one that the user had the run go on from.

    Returns:
        The path of the checkpoint.

    Raises:
        OutputError: the folder cannot be written or the disk is full; older checkpoints are as they were.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    path = folder / f"model_epoch_{epoch:03d}_step_{step:05d}.pth"
    for unfinished in folder.glob(".model_epoch_*.pth"):  # of a run that was killed while it wrote
        unfinished.unlink(missing_ok=True)
    write_bytes_atomic(path, sealed(buffer.getvalue(), key))
    _point_latest_at(path)
    for old in _by_age(folder)[:-keep]:
        if old != path and (spare is None or old.resolve() != spare.resolve()):
            old.unlink(missing_ok=True)
    return path


def find_latest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a results folder, or None.

    The link is a convenience; a kill between writing a checkpoint and linking it loses nothing.
    """
    found = _by_age(folder)
    if found:
        return found[-1]
    link = folder / LATEST
    return link if link.exists() else None


def choose(folder: Path, given: str | None, key: Key | None) -> tuple[Path | None, dict[str, Any] | None]:
    """Return the checkpoint to go on from, and what it holds; None where a run starts.

    With a checkpoint that the user has given, the same command goes on with the run that began from it.

    Args:
        folder: the results folder of training.
        given: the checkpoint that the user wants.
        key: decrypts the files.

    Raises:
        ModelFileError: a checkpoint that is not there, or is none.
        ConfigError: the folder holds newer checkpoints of another run, which would be mixed with those to come.
    """
    newest = find_latest(folder)
    if given is None:
        return newest, None if newest is None else load_checkpoint(newest, key)
    asked = Path(given)
    state = load_checkpoint(asked, key)
    if newest is None or newest.resolve() == asked.resolve():
        return asked, state
    try:
        last = load_checkpoint(newest, key)
    except ModelFileError as error:
        raise ModelFileError(f"{error}; it is newer than {asked}: move it away to go on from that") from None
    if last.get("branched_from") == digest(asked):
        return newest, last
    if "progress" in state and _step(last) > _step(state):
        raise ConfigError(
            f"{newest} is newer than {asked}, and of a run that did not begin from it: give another results_dir, or "
            "move the newer checkpoints away"
        )
    return asked, state


def digest(checkpoint: Path) -> str:
    """Return what stands for a checkpoint's contents."""
    with checkpoint.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _step(state: dict[str, Any]) -> int:
    progress = state.get("progress")
    return int(progress["step"]) if isinstance(progress, dict) else 0


def _by_age(folder: Path) -> list[Path]:
    named = [(match, path) for path in folder.glob("model_epoch_*_step_*.pth") if (match := _NAME.fullmatch(path.name))]
    return [path for match, path in sorted(named, key=lambda pair: (int(pair[0][2]), int(pair[0][1])))]


def _point_latest_at(path: Path) -> None:
    link = path.parent / LATEST
    fresh = link.with_suffix(".new")
    try:
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(path.name)
        fresh.replace(link)
    except OSError:  # a file system without links (some Windows set-ups, FAT): a copy serves
        try:
            write_bytes_atomic(link, path.read_bytes())
        except OSError as error:
            raise OutputError(f"{link}: cannot be written ({error.strerror})") from error
