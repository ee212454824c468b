"""Opens the job's Spark session: which Java, which Python, and where workers find this package. Driver only."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from ballast_rebalance.java_home import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_NAME = "ballast-rebalance"
DEFAULT_MASTER = "local[*]"
# The heavy work is done in Python; Java's part ends before its optimising compiler would pay off.
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

STREAMS = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"


class SessionError(Exception):
    """Spark does not start; Java has already printed its own message."""


class InterruptedLookError(SystemExit):
    """Ctrl-C or SIGTERM, of a class that no caller catches, logs or answers by calling Java again."""


@contextmanager
def lasting_session(master: str | None = None, memory: str | None = None) -> Iterator[SparkSession]:
    """A session for as long as the block lasts; Ctrl-C or SIGTERM ends it and leaves no Java behind.

    The first signal while Java starts waits until it has: abandoned before it has reported its port, Java would run
    forever; a second one kills it. A signal while it runs makes no further call to it, since the answer to the last
    one may still be on its way: it ends by itself when this process does.
    """
    asked: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if asked:
            _kill_children()
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


def _kill_children() -> None:
    """Kill Java, or the script that becomes it: Spark keeps its process to itself until it has started."""
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in listed.read_text().split():
            os.kill(int(child), signal.SIGKILL)


def _started(master: str | None, memory: str | None) -> SparkSession:
    try:
        return open_session(master, memory)
    except Exception as error:  # from Java, py4j or Spark: they have no closer common ancestor
        raise SessionError(f"Spark does not start: {str(error).splitlines()[0]}") from error


def open_session(master: str | None, memory: str | None, settings: dict[str, str] | None = None) -> SparkSession:
    """A session; by default on spark-submit's master, else on this machine."""
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
    signal.signal(signal.SIGINT, before)  # Spark's context installs a handler of its own
    session = SparkSession.builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    _leave_ended_streams_to_us(session)
    session.dataSource.register(PrometheusDataSource)
    return session


def _leave_ended_streams_to_us(session: SparkSession) -> None:
    """Spark logs a hundred lines of Java's and Python's stack for a stream that ends because Prometheus is away; who
    started the stream gets the same as an exception."""
    assert session.sparkContext._jvm is not None
    log4j: Any = session.sparkContext._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(STREAMS, log4j.Level.OFF)


def settings_for(master: str | None, memory: str | None) -> dict[str, str]:
    """The job's Spark settings; `master` is None if spark-submit sets it."""
    chosen = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.ui.enabled": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        # Else a stream that fails leaves its checkpoint behind, and each look makes one while Prometheus is away.
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    }
    if master and master.startswith("local"):
        chosen |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Java defaults to /tmp, whatever TMPDIR says: nobody would remove what a killed Java leaves there.
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
