from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inkmill.cli.main import ALIASES, run
from inkmill.cli.options import load

HEAVY = {"torch", "lightning", "cv2", "numpy", "pydantic", "yaml", "onnxruntime"}


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh Python holds after running `code`."""
    script = f"import contextlib, io, sys\nwith contextlib.redirect_stdout(io.StringIO()):\n    {code}\n"
    script += "print(' '.join({name.partition('.')[0] for name in sys.modules}))"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


def test_importing_inkmill_imports_nothing_heavy() -> None:
    assert loaded_by("import inkmill") & HEAVY == set()


def test_help_imports_nothing_heavy() -> None:
    assert loaded_by("from inkmill.cli.main import run; run(['--help'])") & HEAVY == set()


def test_help_lists_every_verb_and_no_alias(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    assert [verb for verb in ALIASES if f"│ {verb} " not in said] == []
    assert "dataset_convert" not in said


@pytest.mark.parametrize("verb", [*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases)])
def test_every_verb_and_alias_has_its_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    assert f"Usage: inkmill {verb} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["tran"], "unknown verb 'tran' (did you mean 'train'?); the verbs are convert, synth, check, train"),
        (["train", "--foo"], "No such option: --foo; `inkmill train --help` shows what there is"),
        (["--foo"], "No such option: --foo; `inkmill --help` shows what there is"),
        (["train", "-e", "no.yaml"], "cannot read the spec: no.yaml: no such file or folder"),
        (["train", "-e", "captchas"], "there is neither a spec file nor a preset 'captchas'"),
        (["train", "x", "train.num_epoch=3"], "unknown key 'train.num_epoch' (did you mean 'train.num_epochs'?)"),
        (
            ["train", "x", "train.num_epochs=many"],
            "must be a whole number >= 1 and <= 1,000,000, not 'many'",
        ),
        (["train", "x", "dataset.val_fraction=2"], "dataset.val_fraction must be a number > 0 and < 1, not 2"),
        (["evaluate", "x"], "evaluate needs evaluate.checkpoint"),
        (["infer"], "infer needs images: give `inkmill infer MODEL IMAGE...`"),
        (["infer", "m.onnx"], "infer needs images: give `inkmill infer MODEL IMAGE...`"),
        (["convert", "only-one"], "convert takes SOURCE and DESTINATION, or neither of them"),
        (["convert"], "convert needs dataset_convert.input_img_dir"),
        (["spec", "train"], "spec takes no 'train'"),
        (["infer", "m.onnx", "--format", "xml"], "'xml' is not one of"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(given) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.startswith("inkmill: ")
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_where_an_error_comes_from() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "inkmill.cli.main", "train", "a=1", "--debug"], capture_output=True, text=True
    )
    assert "Traceback" in shown.stderr
    assert "ConfigError: unknown key 'a'" in shown.stderr


def test_the_spec_is_printed_and_can_be_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["spec", "-e", "captcha", "train.num_epochs=7"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    assert run(["spec", "-e", str(tmp_path / "mine.yaml")]) == 0
    assert "num_epochs: 7" in capsys.readouterr().out


def test_a_reader_of_the_output_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m inkmill.cli.main spec | true"
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert shown.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a Linux device that is always full")
def test_output_onto_a_full_disk_is_one_sentence() -> None:
    command = f"{sys.executable} -m inkmill.cli.main spec > /dev/full"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr == "inkmill: the disk is full; free some space or choose another place\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_says_so_in_its_status(number: signal.Signals, code: int, tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from inkmill.cli import check, main\n"
        f"check._check = lambda *_: os.kill(os.getpid(), {int(number)})\n"
        "main.main(['check', 'x', 'results_dir=' + sys.argv[1]])\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    last = (tmp_path / "check" / "status.json").read_text(encoding="utf-8").splitlines()[-1]
    assert json.loads(last)["status"] == "FAILURE"


def test_the_page_of_the_command_line_names_every_verb_and_alias() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [verb for verb in ALIASES if f"\n| `{verb}" not in page] == []
    assert [alias for aliases in ALIASES.values() for alias in aliases if f"`{alias}`" not in page] == []


def test_a_fault_of_its_own_is_no_answer(tmp_path: Path) -> None:
    script = "import inkmill.cli.main as m; m.build = lambda: 1 / 0; m.main(['check', 'x'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 3
    assert "ZeroDivisionError" in done.stderr


def test_a_preset_and_a_file_may_both_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("train: {num_epochs: 77}\n")
    assert run(["spec", "-e", "captcha", "-e", f"{tmp_path}/mine.yaml"]) == 0
    said = capsys.readouterr().out
    assert run(["spec", "-e", "captcha", "train.num_epochs=77"]) == 0
    assert said == capsys.readouterr().out
    assert run(["spec", "-e", "captcha", "-e", "line", "-e", "tao"]) == 2
    assert "-e captcha -e line -e tao: expected a file or a preset" in capsys.readouterr().err
    assert run(["spec", "-e", f"{tmp_path}/mine.yaml", "-e", "captcha"]) == 2
    assert "expected a file or a preset, or a preset and then a file" in capsys.readouterr().err


def test_sets_given_by_position_stand_in_place_of_those_of_taos_keys(
    some: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "tao.yaml"
    spec.write_text(f"dataset: {{train_dataset_dir: [{tmp_path}/gone], train_gt_file: {tmp_path}/gone.txt}}\n")
    assert run(["check", str(some), "-e", str(spec), f"results_dir={tmp_path}/r"]) == 0
    assert run(["check", "-e", str(spec), f"results_dir={tmp_path}/r"]) == 2
    assert "gone" in capsys.readouterr().err
    loaded = load([str(spec)], ["evaluate.test_dataset_dir=x"], evaluate__test=["y"])
    assert loaded.evaluate.test_dataset_dir == "x", "what is given by key is kept"
    assert load(None, [], evaluate__test=["y"]).evaluate.test_dataset_dir is None


def test_names_that_are_not_valid_unicode_cost_nothing(some: Path, tmp_path: Path) -> None:
    strange = os.fsdecode(b"caf\xe9")
    some.rename(tmp_path / strange)
    assert run(["check", f"{tmp_path}/{strange}", f"results_dir={tmp_path}/r"]) == 0
    experiment = (tmp_path / "r" / "check" / "experiment.yaml").read_text(encoding="utf-8")
    assert "caf" in experiment


def test_a_value_without_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["spec", "dataset.cache_gib=.inf"]) == 2
    assert capsys.readouterr().err.startswith("inkmill: dataset.cache_gib must be")


def test_a_shell_can_complete_verbs() -> None:
    asked = {"_INKMILL_COMPLETE": "complete_bash", "COMP_WORDS": "inkmill ch", "COMP_CWORD": "1"}
    run = [sys.executable, "-m", "inkmill"]
    ended = subprocess.run(run, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["check"]
