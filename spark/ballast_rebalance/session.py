"""The Spark session of the job: which Java, which Python, and where workers find this package. Driver only."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ballast_rebalance.java_home import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_NAME = "ballast-rebalance"
DEFAULT_MASTER = "local[*]"
# The numbers are in Python; what Java does here ends before its optimising compiler would pay.
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def open_session(
    master: str | None = None, memory: str | None = None, settings: dict[str, str] | None = None
) -> SparkSession:
    """A session; under spark-submit the master that was submitted to, else this machine."""
    submitted = "SPARK_ENV_LOADED" in os.environ
    master = master if master or submitted else DEFAULT_MASTER
    _prepare_environment(local=not submitted and master is not None and master.startswith("local"))
    from pyspark.sql import SparkSession

    from ballast_rebalance.prometheus import PrometheusDataSource

    builder = SparkSession.builder.appName(APP_NAME)
    if master:
        builder = builder.master(master)
    for key, value in (settings_for(master, memory) | (settings or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(PrometheusDataSource)
    return session


def settings_for(master: str | None, memory: str | None) -> dict[str, str]:
    """What the job wants of Spark; `master` is None where spark-submit knows it."""
    chosen = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
    }
    if master and master.startswith("local"):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        chosen |= {"spark.driver.extraJavaOptions": SHORT_RUN, "spark.sql.codegen.wholeStage": "false"}
    if memory:
        chosen["spark.driver.memory"] = memory
    return chosen


def _prepare_environment(local: bool) -> None:
    os.environ["JAVA_HOME"] = str(find_java_home(os.environ))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    root = str(Path(__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])
