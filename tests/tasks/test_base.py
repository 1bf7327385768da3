"""The task seam: what the rooms that know no task ask of every one of them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from inkmill.config.spec import Spec
from inkmill.config.tasks import EvaluateSpec
from inkmill.data.types import Labels, Text, Texts
from inkmill.errors import ConfigError, DataError, ModelFileError
from inkmill.tasks import TASKS, find_task
from inkmill.tasks.base import Task
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.decoder import ALL, BEST, Reading
from inkmill.tasks.recognition.task import Recognition

SPEC = Spec.model_validate({"model": {"backbone": "Tiny", "input_width": 64}})
TASK = Recognition(SPEC.model, Charset(("a", "b", "c")), 4, ["typographic"])


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_registered_under_its_own_name(name: str) -> None:
    task = find_task(name)
    assert issubclass(task, Task)
    assert task.name == name


def test_an_unknown_task_is_answered_with_the_closest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'recognition'"):
        find_task("recogniton")


def test_the_numpy_half_of_a_task_loads_no_torch() -> None:
    code = "import sys; from inkmill.tasks import find_task; find_task('recognition'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_header_brings_the_same_task_back() -> None:
    again = Recognition.from_header(SPEC.model, TASK.header())
    assert again.header() == TASK.header()
    assert again.class_names == TASK.class_names == ("[blank]", "a", "b", "c")


@pytest.mark.parametrize("part", [{}, {"charset": [], "max_label_length": 3}, {"charset": ["a"], "what": 1}])
def test_a_header_of_something_else_is_a_value_error(part: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Recognition.from_header(SPEC.model, part)


def test_truths_are_normalised_and_encoded() -> None:
    truths = TASK.truths(Texts(["ab", "c"]))
    ids, lengths = TASK.encode(truths)
    assert truths == ["ab", "c"]
    assert ids.tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]
    assert lengths.tolist() == [2, 1]


def test_a_target_of_another_kind_is_refused_in_a_sentence() -> None:
    with pytest.raises(DataError, match="has labels as its target"):
        TASK.truths([Text("ab"), Labels(("cat",))])


def test_a_decoder_reads_the_outputs_that_it_needs() -> None:
    decoder = TASK.plain_decoder()
    outputs = {"output_id": np.array([[1, 1, 2]], np.int32), "output_prob": np.full((1, 3), 0.5, np.float32)}
    assert decoder.needs == BEST
    assert decoder.decode(outputs) == [Reading("ab", 0.25)]


def test_a_greedy_decoder_makes_do_with_all_probabilities() -> None:
    decoder = TASK.plain_decoder().limited_to([ALL], "model.onnx")
    assert decoder.needs == (ALL,)
    assert decoder.decode({ALL: np.eye(4, dtype=np.float32)[None, [1, 0, 2]]}) == [Reading("ab", 1.0)]


def test_a_beam_without_all_probabilities_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"export\.probabilities=true"):
        TASK.decoder(beam_width=4).limited_to(BEST, "model.onnx")
    with pytest.raises(ConfigError, match="takes no temperature"):
        TASK.decoder(temperature=2)
    assert TASK.decoder_of(EvaluateSpec(beam_width=3)).notes == ["beam of 3"]


def test_outputs_that_the_header_does_not_describe_are_refused() -> None:
    good = {"output_id": np.zeros((2, 3), np.int32), "output_prob": np.zeros((2, 3), np.float32)}
    TASK.check_outputs(good, 2, "x.onnx")
    for bad in ({"output_id": np.full((2, 3), 4)}, {"output_prob": np.zeros((1, 3))}, {ALL: np.zeros((2, 3, 9))}):
        with pytest.raises(ModelFileError, match=r"x\.onnx"):
            TASK.check_outputs(good | bad, 2, "x.onnx")


def test_the_primary_score_comes_first_in_the_headline() -> None:
    scores = TASK.score(["ab", "c"], [Reading("ab", 0.9), Reading("b", 0.3)])
    assert scores.primary == 0.5
    assert list(scores.headline()) == ["word_accuracy", "cer"]
    assert scores.headline().items() <= scores.as_dict().items()
    assert scores.rank() < TASK.score(["ab"], [Reading("ab", 0.2)]).rank()


def test_a_wrong_answer_is_worse_the_more_edits_it_has() -> None:
    assert TASK.error("ab", Reading("ab", 1.0)) is None
    assert TASK.error("ab", Reading("ac", 0.9)) < TASK.error("ab", TASK.no_prediction())  # type: ignore[operator]
    assert TASK.prediction_row("ab", Reading("ac", 0.5)) == ("ab", "ac", "0.5000", 1)
