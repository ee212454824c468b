"""The adapter over kafka-python's message engine."""

from __future__ import annotations

import subprocess
import sys

from ballast_wire.messages import message


def test_what_was_decoded_can_be_encoded_again() -> None:
    """Brokers forward requests to controllers: decoded from a client, encoded for the controller."""
    kind = message("CreateTopicsRequest")
    topic = kind.CreatableTopic(name="t", num_partitions=3, replication_factor=1, assignments=[], configs=[])
    data = kind(topics=[topic], timeout_ms=1000, validate_only=False).encode(version=7)
    assert kind.decode(bytes(data), version=7).encode(version=7) == data


def test_the_client_library_is_not_loaded() -> None:
    check = (
        "import sys; from ballast_wire.messages import message; message('MetadataRequest'); "
        "sys.exit(any(m.startswith(('kafka.consumer', 'kafka.client', 'ssl')) for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", check], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=30)


def test_the_engines_own_clients_can_use_the_class() -> None:
    """The engine keeps one class for each kind of response: whoever defined it last."""
    kind = message("HeartbeatResponse")
    data = kind(version=1, throttle_time_ms=0, error_code=27).encode(version=1)
    assert kind[1].decode(bytes(data)).error_code == 27
    assert kind.decode(memoryview(data), version=1).error_code == 27
