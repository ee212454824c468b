"""Names chosen by clients never begin a line in a node's log."""

from __future__ import annotations

import io
import logging

import pytest

from ballast_broker.log_lines import OneLine

pytestmark = pytest.mark.spec("CLI-08")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("orders", "orders"),
        ("größe 1", "größe 1"),
        ("x\n2026-01-01 ERROR ballast: all is lost", r"x\n2026-01-01 ERROR ballast: all is lost"),
        ("\r\x1b[2Jx\x00\u2028\ud800", r"\r\x1b[2Jx\x00\u2028\ud800"),
    ],
)
def test_a_message_is_one_line(name: str, shown: str) -> None:
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(OneLine("%(levelname)s: %(message)s"))
    logger = logging.Logger("one")
    logger.addHandler(handler)
    logger.info("User:ann may not READ %s", name)
    assert said.getvalue() == f"INFO: User:ann may not READ {shown}\n"


def test_what_led_to_an_error_has_its_lines() -> None:
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(OneLine())
    logger = logging.Logger("one")
    logger.addHandler(handler)
    try:
        raise ValueError("nothing")
    except ValueError:
        logger.exception("in\nvain")
    assert said.getvalue().startswith("in\\nvain\nTraceback")
    assert said.getvalue().endswith("\nValueError: nothing\n")
