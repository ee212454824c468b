"""What the operator tells of itself: one line per event; for machines one JSON object with the object and the cluster.

Everything that happens while a cluster is looked at carries that cluster, whoever logs it: `CLUSTER` is set by its
worker's cycle. Who logs about one object names it with `about`.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from typing import Any

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


def configure_logging(machines: bool, level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if machines else plain)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Both libraries tell every connection and every event; what matters of them is told here.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("kopf").setLevel(logging.WARNING)
