"""A Spark driver in a process of its own, like a user's program, which takes commands and answers in lines of JSON.

It uses Spark's own Kafka connector (jars in BALLAST_SPARK_JARS) and ends when its standard input does. Its argument is
the settings that Spark starts with, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ballast_rebalance.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.kafka.useDeprecatedOffsetFetching": "false"}
OF_A_RECORD = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, topic string, `partition` int"
)
Options = dict[str, str]
Record = dict[str, Any]


class Driver:
    """Carries out the commands, each by the method of its name."""

    def __init__(self, settings: Options) -> None:
        jars = ",".join(map(str, Path(os.environ["BALLAST_SPARK_JARS"]).glob("*.jar")))
        self._session: SparkSession = open_session("local[2]", "1g", {"spark.jars": jars, **SETTINGS, **settings})
        self._queries: dict[str, StreamingQuery] = {}

    def read(self, options: Options) -> list[Record]:
        """The records that a batch read finds."""
        return records(self._session.read.format("kafka").options(**options).load())

    def write(self, options: Options, sent: list[Record]) -> None:
        rows = [
            (encoded(each["key"]), encoded(each["value"]), headers_of(each), each["topic"], each["partition"])
            for each in sent
        ]
        self._session.createDataFrame(rows, OF_A_RECORD).write.format("kafka").options(**options).save()

    def obtain_token(self, cluster: str) -> str:
        """Get a delegation token of this cluster through the connector and add it to Spark's user, as Spark does by
        itself with Hadoop security. Return the token's id."""
        jvm: Any = self._session._jvm
        conf = self._session.sparkContext._jsc.sc().getConf()
        of_cluster = jvm.org.apache.spark.kafka010.KafkaTokenSparkConf.getClusterConfig(conf, cluster)
        token = jvm.org.apache.spark.kafka010.KafkaTokenUtil.obtainToken(conf, of_cluster)._1()
        jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().addToken(token.getService(), token)
        return bytes(token.getIdentifier()).decode()

    def stream(self, name: str, source: Options, form: str, sink: Options, trigger: dict[str, Any]) -> None:
        """Start a query that writes keys, values and headers to Kafka, or all columns to files."""
        read = self._session.readStream.format("kafka").options(**source).load()
        if form == "kafka":
            read = read.select("key", "value", "headers")
        writer = read.writeStream.format(form).options(**sink).queryName(name)
        self._queries[name] = (writer.trigger(**trigger) if trigger else writer).start()

    def drain(self, name: str) -> None:
        """Wait until the query has processed everything that is there now."""
        self._queries[name].processAllAvailable()

    def end(self, name: str) -> None:
        """Wait for the end of a query whose trigger ends it."""
        self._queries.pop(name).awaitTermination()

    def stop(self, name: str) -> None:
        self._queries.pop(name).stop()

    def files(self, path: str) -> list[Record]:
        """What a query wrote, as Spark reads it: only the files of committed batches."""
        return records(self._session.read.parquet(path))


def records(found: DataFrame) -> list[Record]:
    rows = found.selectExpr("*", "unix_millis(timestamp) AS timestamp_ms").drop("timestamp").collect()
    return [record_of(row.asDict()) for row in rows]


def record_of(row: dict[str, Any]) -> Record:
    headers = None
    if row.get("headers") is not None:
        headers = [[header.key, decoded(header.value)] for header in row["headers"]]
    return row | {"key": decoded(row["key"]), "value": decoded(row["value"]), "headers": headers}


def headers_of(record: Record) -> list[tuple[str, bytes | None]] | None:
    headers = record["headers"]
    return headers if headers is None else [(name, encoded(value)) for name, value in headers]


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def decoded(value: bytearray | None) -> str | None:
    return None if value is None else value.decode()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that what Java prints is not taken for an answer
    driver = Driver(json.loads(sys.argv[1]))
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"found": getattr(driver, name)(**arguments)}
        except Exception as error:  # any error of Java, py4j or Spark: the test decides which it expects
            answer = {"failed": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
