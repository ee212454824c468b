"""A small Spark session for the whole room, and the made-up cluster that it looks at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The world that the operator's tests share lies beside them.
sys.path.append(str(Path(__file__).resolve().parents[1] / "operator"))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from ballast_rebalance.session import open_session

    session = open_session("local[2]", "1g", {"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
