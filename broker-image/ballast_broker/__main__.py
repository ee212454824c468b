"""Runs one node in the foreground: `python -m ballast_broker FILE.properties [--override name=value ...]`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ballast_broker.config.broker import BrokerConfig, address, broker_config
from ballast_broker.config.properties_file import parse_properties, text_of
from ballast_broker.config_types import ConfigError
from ballast_broker.log_lines import to_stderr
from ballast_broker.metrics.loop_lag import LoopLag
from ballast_broker.net.event_loop import EventLoop

if TYPE_CHECKING:
    from ballast_broker.app import Node
    from ballast_broker.metrics.page import Observed
    from ballast_broker.metrics.server import MetricsServer
    from ballast_broker.net.server import Server
    from ballast_broker.seams import Threads
    from ballast_broker.storage.disk import RealThreads

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Objects created during startup mostly stay; a start that waits for its quorum still collects now and then.
GC_THRESHOLD_AT_START = 1_000_000
# Requests create few reference cycles: fewer, later collections keep pauses off the hot path.
GC_THRESHOLDS = (50_000, 20, 100)
QUORUM_THREADS = 2  # to flush the metadata log, and to finish a snapshot at the same time
THREADS_OF_A_MOVER = 3  # copying, reading ahead, syncing
THREADS_FOR_ALL_ELSE = 8
START_ENDS_WITHIN_S = 2.0  # if stopped meanwhile


def main(argv: list[str] | None = None) -> int:
    """Return 0 after an orderly stop, 1 if the node failed, 2 if the configuration is wrong."""
    arguments = _parser().parse_args(argv)
    to_stderr(arguments.log_level.upper())
    try:
        text = text_of(Path(arguments.properties).read_bytes())
    except OSError as error:
        print(f"cannot read {arguments.properties}: {error.strerror}", file=sys.stderr)
        return 2
    try:
        config = broker_config(parse_properties(text), arguments.override)
    except ConfigError as error:
        print(f"{arguments.properties}: {error}", file=sys.stderr)
        return 2
    for warning in config.warnings:
        logging.getLogger("ballast").warning("%s", warning)
    gc.set_threshold(GC_THRESHOLD_AT_START)
    lag = None if config.metrics_port is None else LoopLag()
    with asyncio.Runner(loop_factory=lambda: EventLoop(lag)) as runner:
        return runner.run(_run(config, lag))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ballast broker", description="Run one broker or controller.")
    parser.add_argument("properties", metavar="FILE", help="a properties file with Apache Kafka's property names")
    parser.add_argument(
        "--override", action="append", default=[], metavar="NAME=VALUE", help="set one property; may be repeated"
    )
    parser.add_argument("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    return parser


async def _run(config: BrokerConfig, lag: LoopLag | None) -> int:
    from ballast_broker.storage.disk import RealThreads

    stop = _asked_to_stop()
    threads, quorum_threads = RealThreads(_most_threads(config)), RealThreads(QUORUM_THREADS)
    try:
        node, server = _node(config, threads, quorum_threads)
        return await _serve(node, server, lag, stop, threads)
    except ConfigError as error:
        print(f"broker {config.node_id}: {error}", file=sys.stderr)
        return 2
    finally:
        await _end_what_is_under_way()
        quorum_threads.close()
        threads.close()


def _most_threads(config: BrokerConfig) -> int:
    """Enough threads that no work waits for another directory's disk; they are created on demand."""
    from ballast_broker.storage.directory_threads import AT_ONCE

    of_a_directory: int = AT_ONCE + config.num_recovery_threads_per_data_dir
    return len(config.log_directories) * of_a_directory + config.mover_count * THREADS_OF_A_MOVER + THREADS_FOR_ALL_ELSE


def _asked_to_stop() -> asyncio.Event:
    """An event set by the first stop signal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop() -> None:
        stop.set()
        for number in STOP_SIGNALS:  # ignore further ones: they must not interrupt the stop or kill the process
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, ask_to_stop)
    return stop


def _node(config: BrokerConfig, threads: Threads, quorum_threads: Threads) -> tuple[Node, Server]:
    """Create the node with real resources, and the server that accepts its connections."""
    from ballast_broker import security_settings as security
    from ballast_broker.app import Node
    from ballast_broker.handles import MOST_FOR_LOGS, raise_limit, shares
    from ballast_broker.net.channel import SocketNetwork
    from ballast_broker.net.server import Server
    from ballast_broker.real_world import RealClock, RealRandom
    from ballast_broker.settings import connection_limits, connection_rates
    from ballast_broker.storage.disk import RealDisk
    from ballast_broker.world import World

    handles = shares(raise_limit())
    if handles.logs < MOST_FOR_LOGS:
        text = "the hard limit of open files is low: %d segments are kept open, and %d clients are let in"
        logging.getLogger("ballast").warning(text, *handles)
    accesses = security.accesses(
        config,
        lambda user, mechanism: node.scram_credential(user, mechanism),
        lambda token_id, mechanism, salt: node.token_login(token_id, mechanism, salt),
    )
    between = security.outgoing(config, config.inter_broker_listener, config.sasl_mechanism_inter_broker_protocol)
    to_controllers = security.outgoing(config, config.controller_listener, config.sasl_mechanism_controller_protocol)
    clock, client_id = RealClock(), f"broker-{config.node_id}"
    server = Server(connection_limits(config, handles.connections), accesses, connection_rates(config, clock))
    world = World(
        RealDisk(), clock, RealRandom(), threads, quorum_threads, SocketNetwork(client_id, between), server,
        open_files=handles.logs, quorum_network=SocketNetwork(client_id, to_controllers),
        probing=SocketNetwork(client_id),
    )  # fmt: skip
    node = Node(config, world)
    return node, server


async def _serve(node: Node, server: Server, lag: LoopLag | None, stop: asyncio.Event, threads: RealThreads) -> int:
    """Run until stopped or failed."""
    from ballast_broker.node_failed import NodeFailed
    from ballast_broker.raft.integrity import CorruptMetadata
    from ballast_broker.storage.errors import DirectoryRefused

    loop = asyncio.get_running_loop()
    stopping: asyncio.Task[Any] = loop.create_task(stop.wait())
    metrics = None
    try:
        metrics = await _open_metrics(node, server, lag)
        starting: asyncio.Task[Any] = loop.create_task(node.start())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting}, timeout=START_ENDS_WITHIN_S)
            await _end_threads_of_start(threads)
            return 0
        starting.result()
        gc.freeze()  # do not scan startup objects again while requests wait
        gc.set_threshold(*GC_THRESHOLDS)
        if lag is not None:
            lag.forget_longest()
        print(_ready_line(node, metrics), flush=True)
        await asyncio.wait({stopping, node.failed}, return_when=asyncio.FIRST_COMPLETED)
        if node.failed.done():
            node.failed.result()
        await node.stop()
        if any(directory.given_up and directory.threads.silent for directory in node.logs.all_directories):
            os._exit(0)  # nothing is left to write there, and a thread waiting for that disk cannot be ended otherwise
    except (NodeFailed, CorruptMetadata, DirectoryRefused, OSError) as error:
        print(f"broker {node.config.node_id}: {error}", file=sys.stderr)
        return 1
    finally:
        stopping.cancel()
        if node.failed.done():
            node.failed.exception()  # mark as retrieved: if the start itself failed, that has been reported
        if metrics is not None:
            await metrics.stop()
    return 0


async def _end_threads_of_start(threads: RealThreads) -> None:
    """Stop during startup: nothing written needs finishing. A thread waiting for its disk cannot be ended otherwise."""
    closing = asyncio.get_running_loop().run_in_executor(None, threads.close)
    _, waiting = await asyncio.wait({closing}, timeout=START_ENDS_WITHIN_S)
    if waiting:
        os._exit(0)


async def _end_what_is_under_way() -> None:
    """Cancel a failed node's tasks before the threads they would use are gone."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _open_metrics(node: Node, server: Server, lag: LoopLag | None) -> MetricsServer | None:
    """Open before the node starts, so that probes get "not ready" rather than no response."""
    if node.config.metrics_port is None or lag is None:
        return None
    from ballast_broker.metrics.page import MetricsPage
    from ballast_broker.metrics.server import MetricsServer

    pages: list[MetricsPage] = []

    def page() -> MetricsPage | None:
        if not pages and node.ready:
            pages.append(MetricsPage(_observed(node, server, lag)))
        return pages[0] if pages else None

    metrics = MetricsServer(page, lambda: node.ready)
    await metrics.start(node.config.listeners_all[0].host, node.config.metrics_port)
    return metrics


def _observed(node: Node, server: Server, lag: LoopLag) -> Observed:
    from ballast_broker.metrics.page import Observed

    config, broker = node.config, node.broker
    return Observed(
        node_id=config.node_id,
        cluster_id=node.cluster_id,
        rack=config.broker_rack,
        image=lambda: node.image,
        logs=node.logs,
        requests=node.request_metrics,
        quotas=node.client_quotas,
        traffic=node.traffic,
        quorum=node.driver,
        server=server,
        lag=lag,
        replication=None if broker is None else broker.replication,
        groups=None if broker is None else broker.groups,
        transactions=None if broker is None else broker.transactions,
        per_partition=config.metrics_partitions_enable,
    )


def _ready_line(node: Node, metrics: MetricsServer | None) -> str:
    config = node.config
    roles = " and ".join(
        role for role, has in (("broker", config.is_broker), ("controller", config.is_controller)) if has
    )
    addresses = node.addresses()
    where = ", ".join(map(str, addresses))
    page = f", metrics on http://{address(addresses[0].host, metrics.port)}/metrics" if metrics is not None else ""
    return f"Ballast {roles} {config.node_id} is ready on {where}{page}"


if __name__ == "__main__":
    sys.exit(main())
