from __future__ import annotations

import string
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.errors import CharsetError, OutputError
from inkmill.tasks.recognition.charset import Charset

VIETOCR = """# comment
vocab: 'aAàÀảẢ0123456789!"#$%&''()*+,-./:;<=>?@[\\]^_`{|}~ '

# cpu, cuda, cuda:0
device: cuda:0
optimizer:
    'max_lr':3e-4,
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "characters.txt"


def read(file: Path, data: str | bytes) -> Charset:
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    return Charset.from_file(file)


def test_one_class_a_line_in_file_order(file: Path) -> None:
    assert read(file, "b\na\n7").chars == ("b", "a", "7")


def test_byte_order_mark_and_crlf_leave_no_trace(file: Path) -> None:
    charset = read(file, b"\xef\xbb\xbfa\r\nb\r\n")
    assert charset.chars == ("a", "b")
    assert charset.notes == ()


def test_a_line_holding_one_space_is_the_space_class(file: Path) -> None:
    assert read(file, "a\n \nb\n").chars == ("a", " ", "b")


def test_paddle_file_ending_in_the_space_class(file: Path) -> None:
    assert read(file, "$\n#\n \n").chars == ("$", "#", " ")


def test_blank_lines_are_left_out_and_counted(file: Path) -> None:
    charset = read(file, "a\n\nb\r\n\r\n")
    assert charset.chars == ("a", "b")
    assert charset.notes == ("2 blank lines left out (a space class is a line holding one space)",)


def test_spaces_around_a_character_are_left_out_as_tao_does(file: Path) -> None:
    charset = read(file, "a \n\tb\n")
    assert charset.chars == ("a", "b")
    assert "line 1" in charset.notes[0]


def test_repeats_are_left_out_and_named(file: Path) -> None:
    charset = read(file, "a\nb\na\n")
    assert charset.chars == ("a", "b")
    assert charset.notes == ("1 repeated entries left out: 'a'",)


def test_decomposed_and_composed_spelling_are_one_class(file: Path) -> None:
    charset = read(file, unicodedata.normalize("NFD", "ế") + "\nế\n\u2126\n")
    assert charset.chars == ("ế", "Ω")
    assert "1 repeated" in charset.notes[0]


def test_character_that_nfc_takes_apart_becomes_its_parts(file: Path) -> None:
    charset = read(file, "\u0958\na\n")
    assert charset.chars == ("\u0915", "\u093c", "a")
    assert "line 1: NFC" in charset.notes[0]


def test_line_separators_other_than_newline_are_characters(file: Path) -> None:
    assert read(file, "a\n\u2028\n\u3000\n").chars == ("a", "\u2028", "\u3000")


def test_single_line_of_many_characters_keeps_its_spaces(file: Path) -> None:
    assert read(file, "0123 \n").chars == ("0", "1", "2", "3", " ")


def test_vietocr_config_gives_its_vocab_whatever_else_it_holds(file: Path) -> None:
    charset = read(file, VIETOCR)
    assert charset.chars == tuple("aAàÀảẢ0123456789" + string.punctuation + " ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a\nbc\nd\n", r"characters.txt:2: 'bc' holds 2 characters where one was expected: put one character on each"),
        ("a\n  \n", r"characters.txt:2: '  ' holds 2 characters"),
        ("", r"the character list is empty"),
        ("\n\n", r"the character list is empty"),
        ("a\n\x07\n", r"characters.txt: '\\x07' is a control character"),
        (b"a\nb\n\xff\n", r"characters.txt:3: not UTF-8 \(byte 0xff\): save the file as UTF-8"),
        ("vocab: 'abc", r"the entry 'vocab' is not valid YAML"),
        ("vocab: 0123\n", r"the entry 'vocab' must be a string of characters: put it in quotes"),
        (b"a" * (5 << 20), r"larger than 4 MiB"),
    ],
)
def test_unusable_file_is_one_sentence_naming_the_place(file: Path, data: str | bytes, message: str) -> None:
    with pytest.raises(CharsetError, match=message):
        read(file, data)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CharsetError, match=r"cannot read the character list .*nowhere.txt: No such file"):
        Charset.from_file(tmp_path / "nowhere.txt")


@pytest.mark.parametrize("chars", [(), ("a", "a"), ("ab",), ("e\u0301",), ("\u2126",), ("\n",), ("\ud800",)])
def test_impossible_classes_are_refused(chars: tuple[str, ...]) -> None:
    with pytest.raises(CharsetError):
        Charset(chars)


def test_from_texts_collects_composed_characters_sorted() -> None:
    charset = Charset.from_texts(["b a", unicodedata.normalize("NFD", "ế")])
    assert charset.chars == (" ", "a", "b", "ế")


def test_from_texts_leaves_control_characters_out_and_says_so() -> None:
    charset = Charset.from_texts(["a\tb"])
    assert charset.chars == ("a", "b")
    assert charset.notes == ("control characters left out: '\\t'",)


def test_from_texts_without_characters_is_an_error() -> None:
    with pytest.raises(CharsetError, match="no label holds a character"):
        Charset.from_texts(["", ""])


def test_unknown_characters_are_listed_once_in_order() -> None:
    assert Charset(("a", "b")).unknown("xaybx") == "xy"


def test_length_and_membership() -> None:
    charset = Charset(("a", " "))
    assert len(charset) == 2
    assert " " in charset
    assert "b" not in charset


@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=2))
def test_saved_list_reads_back_in_the_same_order(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "saved.txt"
    charset = Charset(tuple(dict.fromkeys(unicodedata.normalize("NFC", text))))
    charset.save(file)
    again = Charset.from_file(file)
    assert again.chars == charset.chars
    assert not list(file.parent.glob(".saved*"))


def test_saving_where_a_file_is_in_the_way_is_an_output_error(file: Path) -> None:
    file.write_text("x")
    with pytest.raises(OutputError, match="cannot write"):
        Charset(("a",)).save(file / "list.txt")
