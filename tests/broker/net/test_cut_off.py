"""A connection to a machine that is cut off ends within seconds, whichever side was sending; in a real network."""

from __future__ import annotations

import asyncio
import socket

import pytest
from e2e import hosts
from e2e.hosts import Hosts

from ballast_broker.net.channel import SocketNetwork
from ballast_wire.messages import message

PORT = 9092
SILENT, ASKING = 1, 2
AT_MOST_S = 30.0  # the kernel would go on for a quarter of an hour


@pytest.mark.simulation
@pytest.mark.spec("REP-01", "CLU-02")
@pytest.mark.parametrize("lost", [(ASKING, SILENT), (SILENT, ASKING)], ids=["the request", "the answer"])
async def test_who_waits_for_a_machine_that_is_cut_off_is_told(lost: tuple[int, int]) -> None:
    missing = hosts.why_not()
    if missing is not None:
        pytest.skip(missing)
    with Hosts(2) as network:
        silent, asking = network.hosts
        with silent.inside():
            listening = socket.create_server((silent.address, PORT))
        with listening, asking.inside():
            channel = await SocketNetwork("broker-2").connect(silent.address, PORT, timeout_s=10)
            accepted, _ = listening.accept()
            try:
                with accepted:
                    request = message("ApiVersionsRequest")()
                    if lost == (ASKING, SILENT):
                        network.lose(*([each] for each in lost))
                    waiting = asyncio.get_running_loop().create_task(channel.call(request, 0))
                    if lost == (SILENT, ASKING):
                        await asyncio.to_thread(accepted.recv, 1000)
                        network.lose(*([each] for each in lost))
                    with pytest.raises(ConnectionError, match="timed out"):
                        await asyncio.wait_for(waiting, AT_MOST_S)
            finally:
                channel.close()
