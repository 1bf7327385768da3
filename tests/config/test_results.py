from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inkmill.config.load import load_spec
from inkmill.config.results import open_results, results_folder
from inkmill.config.spec import Spec
from inkmill.errors import DataError, OutputError


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "status.json").read_text(encoding="utf-8").splitlines()]


def test_a_run_leaves_its_resolved_spec_and_ends_with_success(tmp_path: Path) -> None:
    spec = load_spec(None, [f"results_dir={tmp_path}", "train.results_dir=${results_dir}/a", "model.TPS=true"])
    with open_results(spec, "train") as results:
        results.status("RUNNING", "epoch 1", kpi={"loss": float("nan"), "acc": 0.5}, epoch=1, max_epoch=2, eta=61.4)
    assert load_spec(tmp_path / "a" / "experiment.yaml") == spec
    started, running, ended = lines(tmp_path / "a")
    assert [started["status"], running["status"], ended["status"]] == ["STARTED", "RUNNING", "SUCCESS"]
    assert running["kpi"] == {"loss": None, "acc": 0.5}
    assert (running["epoch"], running["max_epoch"], running["eta"]) == (1, 2, "0:01:01")
    assert "step" not in running
    assert {"date", "time", "verbosity", "message"} <= set(started)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DataError("the set is empty"), "the set is empty"),
        (KeyboardInterrupt(), "train was interrupted."),
        (SystemExit(1), "train was stopped."),
        (ZeroDivisionError("x"), "ZeroDivisionError: x"),
        (OSError(28, "No space"), "the disk is full; free some space or choose another place"),
    ],
)
def test_a_run_that_fails_ends_with_failure_and_the_error_passes(
    tmp_path: Path, error: BaseException, message: str
) -> None:
    with pytest.raises(type(error)), open_results(Spec(results_dir=str(tmp_path)), "train"):
        raise error
    assert (lines(tmp_path / "train")[-1]["status"], lines(tmp_path / "train")[-1]["message"]) == ("FAILURE", message)


def test_a_second_run_appends(tmp_path: Path) -> None:
    for _ in range(2):
        with open_results(Spec(results_dir=str(tmp_path)), "evaluate"):
            pass
    assert [line["status"] for line in lines(tmp_path / "evaluate")] == ["STARTED", "SUCCESS"] * 2


def test_each_verb_has_its_folder() -> None:
    spec = load_spec(None, ["results_dir=r", "inference.results_dir=mine"])
    assert results_folder(spec, "train") == Path("r/train")
    assert results_folder(spec, "infer") == Path("mine")
    assert results_folder(spec, "check") == Path("r/check")


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match="a part of the path is a file"),
        open_results(Spec(results_dir=f"{tmp_path}/file/x"), "train"),
    ):
        pass


def test_an_error_is_not_hidden_by_a_status_file_that_cannot_be_written(tmp_path: Path) -> None:
    def fail() -> None:
        with open_results(Spec(results_dir=str(tmp_path)), "train") as results:
            (results.folder / "status.json").unlink()
            (results.folder / "status.json").mkdir()
            raise DataError("the real reason")

    with pytest.raises(DataError, match="the real reason"):
        fail()


def test_a_full_disk_while_running_is_an_output_error(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\n"
        "from inkmill.config.results import open_results\n"
        "from inkmill.config.spec import Spec\n"
        "from inkmill.errors import OutputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "try:\n"
        "    with open_results(Spec(results_dir=sys.argv[1]), 'train') as results:\n"
        "        while True: results.status('RUNNING', 'x' * 100)\n"
        "except OutputError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert said.stdout.startswith(f"cannot write {tmp_path}/train/status.json: ")


HOLD = """
import sys
from inkmill.config.results import open_results
from inkmill.config.spec import Spec
with open_results(Spec(results_dir=sys.argv[1]), "train"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_that_another_run_writes_to_is_refused_by_its_process_and_free_after_a_kill(tmp_path: Path) -> None:
    spec = Spec(results_dir=str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(OutputError, match=rf"another `inkmill train` is writing to .*process {other.pid} on "):
            open_results(spec, "train").__enter__()
        with open_results(spec, "evaluate"):  # other verbs write other files
            pass
        other.kill()
    with open_results(spec, "train"):
        pass
    assert [line["status"] for line in lines(tmp_path / "train")] == ["STARTED", "STARTED", "SUCCESS"]
    assert not list((tmp_path / "train").glob(".*"))
