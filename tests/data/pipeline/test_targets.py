"""Class names as vectors; polygons through the fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inkmill.data.pipeline.resize import Resize
from inkmill.data.pipeline.targets import Regions, multi_hot, resize_target
from inkmill.data.types import Labels, Polygons, Text
from inkmill.errors import DataError

CLASSES = ["cat", "dog", "New York"]


@given(st.lists(st.lists(st.sampled_from(CLASSES), max_size=4), max_size=6))
def test_a_vector_has_a_one_for_each_name_and_zeros_elsewhere(batch: list[list[str]]) -> None:
    vectors = multi_hot([Labels(tuple(names)) for names in batch], CLASSES)
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[float(name in names) for name in CLASSES] for names in batch]
    assert vectors.shape == (len(batch), 3)


def test_unknown_classes_are_minus_one_and_not_absent() -> None:
    vectors = multi_hot([Labels((CLASSES[0],), (CLASSES[1],)), Labels(())], CLASSES)
    assert vectors[0, :2].tolist() == [1, -1]
    assert not vectors[1].any()


def test_a_name_that_is_no_class_is_named_with_the_closest() -> None:
    with pytest.raises(DataError, match=r"the class 'dgo' \(did you mean 'dog'\?\) is not among the 3 classes"):
        multi_hot([Labels(("cat",)), Labels(("dgo",))], CLASSES)


def test_a_class_list_with_a_name_twice_is_refused() -> None:
    with pytest.raises(DataError, match="the class 'dog' comes twice"):
        multi_hot([], ["dog", "cat", "dog"])


def test_targets_of_another_kind_are_refused() -> None:
    with pytest.raises(DataError, match="one has text"):
        multi_hot([Labels(("cat",)), Text("cat")], CLASSES)


@pytest.mark.parametrize(("mode", "columns"), [("stretch", 100), ("pad", 80), ("height", 80)])
def test_the_corners_of_the_picture_become_those_of_its_part_of_the_input(mode, columns) -> None:
    width, height = 40, 20
    border = np.array([(-0.5, -0.5), (39.5, -0.5), (39.5, 19.5), (-0.5, 19.5)], np.float32)
    regions = Regions()
    resized = resize_target(Polygons((border,), (False,)), Resize(40, 100, 1, mode), (width, height), regions)
    assert isinstance(resized, Polygons)
    assert np.allclose(resized.points[0], [(-0.5, -0.5), (columns - 0.5, -0.5), (columns - 0.5, 39.5), (-0.5, 39.5)])
    assert not regions
