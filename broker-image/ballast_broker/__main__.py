"""`python -m ballast_broker FILE.properties [--override name=value ...]`: one node in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from ballast_broker.config import BrokerConfig, broker_config, parse_properties
from ballast_broker.config_types import ConfigError

GC_THRESHOLDS = (50_000, 20, 100)


def main(argv: list[str] | None = None) -> int:
    """0 after an orderly stop, 1 where the node failed, 2 where the configuration is wrong."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=getattr(logging, arguments.log_level.upper()),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        text = Path(arguments.properties).read_text()
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
    # Requests make little garbage in cycles: fewer, later collections keep pauses away from the hot path.
    gc.set_threshold(*GC_THRESHOLDS)
    return asyncio.run(_run(config))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ballast broker", description="Run one broker or controller.")
    parser.add_argument("properties", metavar="FILE", help="a properties file with Apache Kafka's property names")
    parser.add_argument(
        "--override", action="append", default=[], metavar="NAME=VALUE", help="set one property; may be repeated"
    )
    parser.add_argument("--log-level", default="warning", choices=("debug", "info", "warning", "error"))
    return parser


async def _run(config: BrokerConfig) -> int:
    from ballast_broker.app import Node, NodeFailed
    from ballast_broker.net.channel import SocketNetwork
    from ballast_broker.net.server import Server
    from ballast_broker.real_world import RealClock, RealRandom
    from ballast_broker.settings import connection_limits
    from ballast_broker.storage.disk import RealDisk, RealThreads
    from ballast_broker.storage.errors import DirectoryRefused
    from ballast_broker.world import World

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    threads = RealThreads()
    world = World(
        RealDisk(),
        RealClock(),
        RealRandom(),
        threads,
        SocketNetwork(f"broker-{config.node_id}"),
        Server(connection_limits(config), threads),
    )
    node = Node(config, world)
    starting: asyncio.Task[Any] = loop.create_task(node.start())
    stopping: asyncio.Task[Any] = loop.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return 0
        starting.result()
        print(_ready_line(config), flush=True)
        await asyncio.wait({stopping, node.failed}, return_when=asyncio.FIRST_COMPLETED)
        if node.failed.done():
            node.failed.result()
        await node.stop()
    except (NodeFailed, DirectoryRefused, OSError) as error:
        print(f"broker {config.node_id}: {error}", file=sys.stderr)
        return 1
    finally:
        stopping.cancel()
        threads.close()
    return 0


def _ready_line(config: BrokerConfig) -> str:
    roles = " and ".join(
        role for role, has in (("broker", config.is_broker), ("controller", config.is_controller)) if has
    )
    where = ", ".join(str(e) for e in (*config.advertised, *config.controller_listeners) if e.port)
    metrics = f", metrics on port {config.metrics_port}" if config.metrics_port is not None else ""
    return f"Ballast {roles} {config.node_id} is ready on {where}{metrics}"


if __name__ == "__main__":
    sys.exit(main())
