"""`python -m ballast_local --data DIR --port P`: the embedded Kubernetes API in the foreground."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from ballast_local.cluster import LocalCluster


async def serve(data: Path, port: int) -> None:
    cluster = LocalCluster()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    kubeconfig = await cluster.start(data, port)
    print(f"KUBECONFIG={kubeconfig}", flush=True)
    print(f"listening on {cluster.url}", flush=True)
    ends = [asyncio.create_task(stop.wait()), asyncio.create_task(cluster.failed())]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            sys.exit(f"cannot write to {data} any more: is the disk full, or was the directory removed?")
    finally:
        for one in ends:
            one.cancel()
        await cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ballast_local", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory that keeps all state")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0: the last one, or any free one")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(arguments.data, arguments.port))


if __name__ == "__main__":
    main()
