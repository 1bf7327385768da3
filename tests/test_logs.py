from __future__ import annotations

import logging

import pytest

from inkmill.logs import silence_logging


def test_messages_are_kept_back_up_to_a_level_and_for_as_long_as_the_block_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logging.getLogger("some.library")

    def talk_and_fail() -> None:
        with silence_logging(logging.INFO):
            log.info("about itself")
            log.warning("about the user's data")
            with silence_logging(logging.DEBUG):
                log.info("about itself again")
            raise ValueError

    with caplog.at_level(logging.DEBUG):
        with pytest.raises(ValueError):  # noqa: PT011 - our own
            talk_and_fail()
        log.info("afterwards")
    assert caplog.messages == ["about the user's data", "afterwards"]
