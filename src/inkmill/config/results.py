"""The folder a verb leaves behind: the resolved spec, and status.json, which ends with SUCCESS or FAILURE.

    with open_results(spec, "train") as results:
        results.status("RUNNING", "epoch 1 of 10 done", epoch=1, max_epoch=10, kpi={"val_acc": 0.91})
        write_json_atomic(results.folder / "metrics.json", metrics)

status.json holds one JSON object a line, as TAO writes it, so that what watches a TAO run can watch this one. TAO
itself never writes SUCCESS, and after many errors nothing at all; here the last line always says how it ended.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from inkmill.config.spec import Spec
from inkmill.config.yaml_file import dump_yaml
from inkmill.errors import InkmillError, OutputError
from inkmill.files import explain, make_folder, write_text_atomic, writing
from inkmill.locks import FileLock

State = Literal["STARTED", "RUNNING", "SUCCESS", "FAILURE"]

_SECTION = {"infer": "inference", "convert": "dataset_convert", "engine": "gen_trt_engine"}


def results_folder(spec: Spec, verb: str) -> Path:
    """Return where `verb` puts its results: the results_dir of its section, else {results_dir}/VERB."""
    section = getattr(spec, _SECTION.get(verb, verb), None)
    own = getattr(section, "results_dir", None)
    return Path(own) if own else Path(spec.results_dir) / verb


def open_results(spec: Spec, verb: str, *, folder: Path | None = None) -> Results:
    """Return the results folder of a verb, to be entered with `with`.

    Args:
        spec: the resolved spec; it is written there as experiment.yaml.
        verb: the verb's own name, not an alias.
        folder: another place than the spec names.
    """
    return Results(folder or results_folder(spec, verb), spec, verb)


class Results:
    """A results folder with its status file; a context manager. See `open_results`.

    Entering creates the folder and raises OutputError where it cannot be written, or where another process of the same
    verb writes to it: two trainings would resume each other's checkpoints, and mix their results.

    Attributes:
        folder: where the verb's files go.
        verb: the verb, for the messages.
    """

    def __init__(self, folder: Path, spec: Spec, verb: str) -> None:
        self.folder, self.verb = folder, verb
        self._spec = spec
        self._status_file = folder / "status.json"
        self._lock = FileLock(
            folder / f".{verb}.lock",
            f"another `inkmill {verb}` is writing to {folder} ({{owner}}): wait for its end, or give another "
            "results_dir",
        )

    def status(
        self,
        state: State,
        message: str,
        *,
        kpi: dict[str, float] | None = None,
        epoch: int | None = None,
        step: int | None = None,
        max_epoch: int | None = None,
        time_per_epoch: float | None = None,
        eta: float | None = None,
    ) -> None:
        """Append a line to status.json; the first and the last one (STARTED, SUCCESS, FAILURE) come by themselves.

        Args:
            state: RUNNING, in all likelihood.
            message: what happened, for people.
            kpi: numbers by name; NaN and infinity, which JSON does not have, become null.
            epoch: epochs done.
            step: optimiser steps since the start of training.
            max_epoch: how many epochs there will be.
            time_per_epoch: in seconds; written as h:mm:ss.
            eta: what is left, in seconds; written as h:mm:ss.

        Raises:
            OutputError: the disk is full, or the folder is gone.
        """
        now = datetime.now()
        line: dict[str, Any] = {
            "date": f"{now.month}/{now.day}/{now.year}",
            "time": f"{now.hour}:{now.minute}:{now.second}",
            "status": state,
            "verbosity": "ERROR" if state == "FAILURE" else "INFO",
            "message": message,
        }
        progress: dict[str, Any] = {"epoch": epoch, "step": step, "max_epoch": max_epoch}
        progress |= {"time_per_epoch": _clock(time_per_epoch), "eta": _clock(eta)}
        line |= {name: value for name, value in progress.items() if value is not None}
        if kpi is not None:
            line["kpi"] = {name: value if math.isfinite(value) else None for name, value in kpi.items()}
        text = json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
        with writing(self._status_file), self._status_file.open("ab") as file:
            file.write(text.encode("utf-8", "backslashreplace"))  # a path need not be valid Unicode

    def __enter__(self) -> Results:
        make_folder(self.folder)
        self._lock.acquire()
        try:
            self._begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def _begin(self) -> None:
        write_text_atomic(self.folder / "experiment.yaml", dump_yaml(self._spec.model_dump()))
        self.status("STARTED", f"{self.verb} started.")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.status("SUCCESS", f"{self.verb} finished successfully.")
                return
            # The error itself is what the user must see, also when its cause (a full disk) stops this line too.
            with suppress(OutputError):
                self.status("FAILURE", _reason(self.verb, error))
        finally:
            self._lock.release()


def _clock(seconds: float | None) -> str | None:
    return None if seconds is None or not math.isfinite(seconds) else str(timedelta(seconds=round(seconds)))


def _reason(verb: str, error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return f"{verb} was interrupted."
    if isinstance(error, SystemExit):
        return f"{verb} was stopped."
    if isinstance(error, InkmillError):
        return str(error)
    return explain(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
