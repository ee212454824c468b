"""Configures the operator's logs: one line per event, or for machines a JSON object with the object and the cluster.

Whatever is logged during a cycle of a cluster carries that cluster: its worker's cycle sets `CLUSTER`. A line about one
object names it with `about`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextvars import ContextVar
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import Any

FILE_BYTES = 8 * 1024 * 1024
REPEAT_SECONDS = 600.0
MAX_REMEMBERED = 1_000
CLUSTER: ContextVar[str] = ContextVar("cluster", default="")


def about(kind: str, key: object) -> dict[str, Any]:
    """For `extra`: the object that a line is about."""
    return {"object": f"{kind} {key}"}


class JsonLines(logging.Formatter):
    """One object per line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "cluster": CLUSTER.get(),
            "object": getattr(record, "object", ""),
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps({key: value for key, value in entry.items() if value != ""})


class KopfOnce(logging.Filter):
    """Drops repeated records of Kopf: for as long as an outage lasts, each of its six watches logs every attempt of
    every request, and every failure with its traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith("kopf"):
            return True
        said = f"{record.name} {record.getMessage()}"
        if record.created - self._told.get(said, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return False
        if len(self._told) >= MAX_REMEMBERED:
            self._told.clear()
        self._told[said] = record.created
        return True


class _OwnFile(RotatingFileHandler):
    """A log file that gets stderr as well, which follows to the new file at each rotation."""

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        os.dup2(stream.fileno(), sys.stderr.fileno())
        return stream


def configure_logging(machines: bool, file: str | None, file_bytes: int = FILE_BYTES) -> None:
    """Log to stderr, or to a file that is rotated to FILE.1."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        handler = _OwnFile(file, maxBytes=file_bytes, backupCount=1)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if machines else plain)
    handler.addFilter(KopfOnce())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # Both libraries log every connection and every event; the operator itself logs what matters.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("kopf").setLevel(logging.WARNING)
