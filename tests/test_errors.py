"""Errors cross process boundaries whole."""

from __future__ import annotations

import pickle

import pytest

from inkmill import errors
from inkmill.errors import InkmillError, LabelFileError, MissingExtraError

EXAMPLES = [
    LabelFileError("expected a TAB", "labels.tsv", 7),
    LabelFileError("cannot be read", "labels.tsv"),
    MissingExtraError("lmdb", "train", "reading an LMDB"),
]
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, InkmillError)]


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_an_error_with_details_comes_back_from_a_process_as_it_was(error: InkmillError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_every_kind_of_error_survives_pickling() -> None:
    plain = [kind("one sentence") for kind in KINDS if "__init__" not in vars(kind)]
    for error in [*plain, *EXAMPLES]:
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert {type(error) for error in [*plain, *EXAMPLES]} == set(KINDS)
