from __future__ import annotations

import json
import os
from datetime import datetime

import numpy as np

from inkmill.bench.stamp import cores, in_words, machine_stamp


def test_a_stamp_names_machine_versions_and_date():
    stamp = json.loads(json.dumps(machine_stamp()))
    assert stamp["cpu"]
    assert stamp["versions"]["numpy"] == np.__version__
    assert datetime.fromisoformat(stamp["date"]).tzinfo is not None
    assert 1 <= stamp["cores"] <= os.cpu_count()


def test_a_process_that_may_use_one_core_has_one():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_the_line_of_a_stamp_says_what_lacks():
    stamp = machine_stamp() | {"gpus": [], "cpu": "A CPU", "cores": 3, "load": None}
    line = in_words(stamp)
    assert "A CPU" in line
    assert "3 cores" in line
    assert "no GPU" in line
    assert "load" not in line
