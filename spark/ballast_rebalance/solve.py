"""Levels brokers' disks in parallel on Spark's executors, by `applyInArrow` (REB-06). Called by the driver."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ballast_planner import ClusterLoad, PlanOptions
from ballast_planner.parallel import BrokerTask, Moves, SolveTasks, solve_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "replica long, directory long"
# Below this, starting the tasks costs more than solving them here; besides, solving brokers together is better.
WORTH_SENDING_REPLICAS = 20_000


def spark_solver(
    spark: SparkSession, load: ClusterLoad, worth_sending: int = WORTH_SENDING_REPLICAS
) -> SolveTasks | None:
    """A solver for `plan_balance`; None for a cluster that the planner had better solve as a whole, perhaps exactly."""
    if load.replicas.size.size < worth_sending:
        return None
    return lambda tasks, options: _send(spark, tasks, options) if tasks else []


def _send(spark: SparkSession, tasks: Sequence[BrokerTask], options: PlanOptions) -> Moves:
    rows = [(task.broker, bytearray(pickle.dumps((task, options)))) for task in tasks]
    frame = spark.createDataFrame(rows, "broker long, task binary").repartition(len(rows), "broker")
    answer = frame.groupBy("broker").applyInArrow(_solve_group, SCHEMA).toArrow()
    moves = zip(answer["replica"].to_pylist(), answer["directory"].to_pylist(), strict=True)
    return sorted((int(replica), int(directory)) for replica, directory in moves)


def _solve_group(table: pa.Table) -> pa.Table:
    moves: Moves = []
    for item in table["task"]:
        # The bytes were made by our own driver a moment ago; nothing from outside is unpickled.
        task, options = pickle.loads(item.as_py())
        moves += solve_task(task, options)
    columns = {"replica": [move[0] for move in moves], "directory": [move[1] for move in moves]}
    return pa.table(columns, schema=pa.schema([("replica", pa.int64()), ("directory", pa.int64())]))
