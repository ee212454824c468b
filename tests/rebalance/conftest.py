"""Provides one small Spark session for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from ballast_rebalance.session import open_session

    session = open_session("local[2]", "1g", {"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
