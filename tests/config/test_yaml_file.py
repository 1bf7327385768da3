from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.config.yaml_file import dump_yaml, parse_yaml
from inkmill.errors import ConfigError

text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | text
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)


@given(st.dictionaries(text, trees, max_size=3), st.booleans())
def test_what_is_dumped_is_read_back_unchanged(data: dict[str, object], flow: bool) -> None:
    assert parse_yaml(dump_yaml(data, flow), "x")[0] == data


@given(st.text(max_size=60))
def test_any_text_is_data_or_a_config_error(hostile: str) -> None:
    with suppress(ConfigError):
        parse_yaml(hostile, "x.yaml")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1e-3", 0.001),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("no", "no"),
        ("True", True),
        ("010", 10),
        ("0x1f", 31),
        ("'5'", "5"),
        ("", None),
        ("~", None),
        (".5", 0.5),
        ("-.inf", float("-inf")),
    ],
)
def test_scalars_follow_yaml_1_2(written: str, meant: object) -> None:
    value = parse_yaml(f"key: {written}", "x")[0]["key"]
    assert value == meant
    assert type(value) is type(meant)


def test_every_key_has_its_line() -> None:
    _, lines = parse_yaml("\ufeffa:\r\n  b: 1\r\n  c:\r\n  - x\r\n  - {d: 2}\r\n", "x")
    assert lines["a", "b"] == 2
    assert lines["a", "c", 1, "d"] == 5


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3: the key 'a' is given twice, first in line 1; remove one"),
        ("a:\n  b: 1\n  b: 1\n", "x.yaml:3: the key 'a.b' is given twice"),
        ("a: !!python/object/apply:os.system ['true']", "x.yaml:1: the tag !!python/object/apply:os.system is refused"),
        ("a: !!int x", "x.yaml:1: the tag !!int is refused"),
        ("a: [1", "x.yaml:1: not valid YAML"),
        ("a:\n\tb: 1", "x.yaml:2: not valid YAML"),
        ("? [a, b]\n: 1", "x.yaml:1: a key must be a word"),
        ("a: 1\n---\nb: 2", "x.yaml:2: not valid YAML"),
        ("a: *b", "x.yaml:1: not valid YAML"),
        ("a: \x00", "x.yaml: not valid YAML"),
        ("&a [*a]", "x.yaml: nested too deeply"),
        ("[" * 5000, "x.yaml: nested too deeply"),
        (f"a: {'9' * 5000}", "x.yaml:1: a number of 5000 digits"),
    ],
)
def test_what_is_not_plain_data_is_one_sentence_with_its_line(written: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(written, "x.yaml")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_aliases_may_be_used_but_not_to_fill_the_memory() -> None:
    assert parse_yaml("a: &a [1]\nb: *a", "x")[0] == {"a": [1], "b": [1]}
    bomb = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    with pytest.raises(ConfigError, match="more than 100,000 values once its aliases are filled in"):
        parse_yaml(bomb, "x")
