from __future__ import annotations

import json
from pathlib import Path

from inkmill.config.model import ModelSpec
from inkmill.modelfile.header import ModelHeader
from inkmill.modelfile.model_card import step, write_model_card
from inkmill.tasks.recognition.charset import Charset
from inkmill.tasks.recognition.task import Recognition


def test_a_card_says_what_is_known_and_calls_the_rest_unknown(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"12345")
    told = {
        "made": [step("train"), step("export", source="a.safetensors")],
        "scores": {"word_accuracy": 0.91234, "loss": float("nan")},
        "data": {"train": {"used": 10, "lost": {}, "fingerprint": "abc"}},
        "licence": {"weights": "Apache-2.0", "data": None},
    }
    card = ModelHeader.of(Recognition(ModelSpec(backbone="Tiny"), Charset(("|", "`", "đ")), 9), told)
    write_model_card(tmp_path / "a.onnx", card, parameters=1234)
    facts = json.loads((tmp_path / "a.onnx.card.json").read_text("utf-8"))
    assert facts["licence"] == {"weights": "Apache-2.0", "data": "unknown"}
    assert (facts["bytes"], facts["parameters"], facts["metrics"]["loss"]) == (5, 1234, None)
    assert [made["verb"] for made in facts["made"]] == ["train", "export"]
    page = (tmp_path / "a.onnx.card.md").read_text("utf-8")
    for shown in (
        "backbone=Tiny",
        "1,234",
        "|`đ",
        "0.9123",
        "abc",
        "| licence of the data | unknown |",
        "Speeds\n\nUnk",
    ):
        assert shown in page


def test_a_bare_card_makes_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"")
    write_model_card(tmp_path / "a.onnx", ModelHeader.of(Recognition(ModelSpec(), Charset(tuple("ab")), 1)))
    assert "| parameters | unknown |" in (tmp_path / "a.onnx.card.md").read_text("utf-8")
