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
