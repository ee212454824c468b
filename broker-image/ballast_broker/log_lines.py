"""Formats each log message as one line, whatever clients call their topics, groups and users.

Otherwise a line break in a name could forge a log line.
"""

from __future__ import annotations

import logging
import sys


def to_stderr(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


class OneLine(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        if not record.message.isprintable():
            record.message = "".join(map(_shown, record.message))
        return super().formatMessage(record)


def _shown(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()
