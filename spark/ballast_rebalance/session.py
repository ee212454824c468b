"""The Spark session of the job: which Java, which Python, and where workers find this package. Driver only."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from ballast_rebalance.java_home import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_NAME = "ballast-rebalance"
DEFAULT_MASTER = "local[*]"
# The numbers are in Python; what Java does here ends before its optimising compiler would pay.
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SessionError(Exception):
    """Spark does not start; what Java had to say is in its own words above."""


class InterruptedLookError(SystemExit):
    """Ctrl-C or SIGTERM, under a name that nobody on its way catches, logs or answers by asking Java again."""


@contextmanager
def lasting_session(master: str | None = None, memory: str | None = None) -> Iterator[SparkSession]:
    """A session for as long as the block lasts; Ctrl-C or SIGTERM ends it and leaves no Java behind.

    While Java starts, either waits for it, the first time: left alone before it has told where it listens, it would
    stay for ever. Afterwards nothing more is said to it, since the answer to what was asked last may still be coming:
    it ends by itself when this process does.
    """
    asked: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if asked:
            raise InterruptedLookError(128 + number)
        asked.append(number)
        print("rebalance ends when Java has started, so that none is left behind", file=sys.stderr)

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        asked.append(number)
        raise InterruptedLookError(128 + number)

    before = signal.signal(signal.SIGINT, note), signal.signal(signal.SIGTERM, note)
    try:
        session = _started(master, memory)
        if asked:
            session.stop()
            raise InterruptedLookError(128 + asked[0])
        signal.signal(signal.SIGINT, leave)
        signal.signal(signal.SIGTERM, leave)
        try:
            yield session
        finally:
            if not asked:
                session.stop()
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def _started(master: str | None, memory: str | None) -> SparkSession:
    try:
        return open_session(master, memory)
    except Exception as error:  # of Java, of py4j and of Spark, whose common ancestor this is
        raise SessionError(f"Spark does not start: {str(error).splitlines()[0]}") from error


def open_session(master: str | None, memory: str | None, settings: dict[str, str] | None = None) -> SparkSession:
    """A session; under spark-submit the master that was submitted to, else this machine."""
    submitted = "SPARK_ENV_LOADED" in os.environ
    master = master if master or submitted else DEFAULT_MASTER
    _prepare_environment(local=not submitted and master is not None and master.startswith("local"))
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    from ballast_rebalance.prometheus import PrometheusDataSource

    chosen = SparkConf().setAppName(APP_NAME)
    if master:
        chosen.setMaster(master)
    for key, value in (settings_for(master, memory) | (settings or {})).items():
        chosen.set(key, value)
    before = signal.getsignal(signal.SIGINT)
    SparkContext.getOrCreate(chosen)
    signal.signal(signal.SIGINT, before)  # Spark's context takes Ctrl-C for itself
    session = SparkSession.builder.getOrCreate()
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
        # Else a stream that fails leaves its place behind, and while Prometheus is away each look makes another one.
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    }
    if master and master.startswith("local"):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Java's own is /tmp, whatever TMPDIR says: what is left there by a Java that is killed nobody would remove.
        options = f'{SHORT_RUN} "-Djava.io.tmpdir={tempfile.gettempdir()}"'
        chosen |= {"spark.driver.extraJavaOptions": options, "spark.sql.codegen.wholeStage": "false"}
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
