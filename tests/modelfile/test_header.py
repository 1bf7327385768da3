from __future__ import annotations

import json
from typing import Any

import pytest

from inkmill.config.model import ModelSpec
from inkmill.errors import ModelFileError
from inkmill.modelfile.header import FORMAT, ModelHeader
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.task import Recognition


def card() -> ModelHeader:
    return ModelHeader.of(Recognition(ModelSpec(), Charset(("a", " ", "đ")), 9, ["typographic"]))


def changed(**keys: Any) -> str:
    return json.dumps(card().model_dump(mode="json") | keys)


def test_a_card_comes_back_as_it_was() -> None:
    assert ModelHeader.from_json(card().to_json(), "x") == card()
    assert card().open_task().codec.num_classes == 1 + 3


def with_part(**keys: Any) -> str:
    return changed(task_header=card().task_header | keys)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (changed(format="inkmill-reader-9"), f"written in format 'inkmill-reader-9', this inkmill reads '{FORMAT}'"),
        (with_part(max_label_length="many"), "(max_label_length: Input should be a valid integer"),
        (changed(model={"input_height": 5}), "(model.input_height: Input should be greater than or equal to 8)"),
        (changed(task="painting"), "its task is 'painting', and this inkmill knows only "),
        (with_part(later=1), "(later: Extra inputs are not permitted)"),
        (changed(later=1), "(later: Extra inputs are not permitted); it is damaged, or written by another version"),
        (with_part(charset=["ab"]), "(the class 'ab' is not one character in NFC"),
        (with_part(charset=["a", "a"]), "(the character 'a' is listed twice"),
        (with_part(normalise=["nothing"]), "unknown normalisation rule set 'nothing'"),
        (with_part(max_label_length=10**9), "(max_label_length: Input should be less than or equal to 4096)"),
        (changed(model={"input_height": 1024, "input_width": 8192}), "has more than 1,048,576 pixels"),
        (changed(model={"TPS": True, "input_width": 8192, "num_fiducial": 100}), "TPS at 32x8192 with 100 points"),
        (changed(model={"hidden_size": 10**6}), "(model.hidden_size: Input should be less than or equal to 8192)"),
        ("[" * 100_000, "its header is not a model's header"),
        ("[]", "its header is not a model's header"),
        ("{", "its header is not a model's header"),
        (3, "its header is not a model's header"),
    ],
)
def test_what_is_no_card_is_one_sentence_with_the_file(text: Any, said: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        ModelHeader.from_json(text, "some.pth")
    assert str(caught.value).startswith("some.pth: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"made": 5}, {"licence": "MIT"}, {"data": "x"}, {"scores": 3}, {"speeds": [1]}])
def test_provenance_of_another_kind_is_damage(wrong: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=rf"provenance.*{next(iter(wrong))} is no"):
        ModelHeader.from_json(changed(provenance=wrong), "x.onnx")
