"""What breaks on a real node while clients are at work: pods, the node's own daemons, the network, volumes.

Nothing that was acknowledged with acks=all may be lost, no produce call may fail, and the cluster heals by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from e2e.kubernetes.faults import HEAL_SECONDS, api_answers, cut_off, out_of_sync, replace_pod, seconds_pass
from e2e.kubernetes.load import Account, load
from e2e.kubernetes.story import produce, throttles_left, until_in_sync
from e2e.kubernetes.world import AWAY_MINUTES, CLUSTER, World, reassignment, topic

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(900),
    # Clients whose connections are cut leave them to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <(socket|ssl):pytest.PytestUnraisableExceptionWarning"),
]
TOPIC = "faults"
CARRIED = "carried-away"
SECONDS_AWAY = 60 * float(os.environ.get(AWAY_MINUTES, 0))


@contextmanager
def under_load(world: World) -> Iterator[Account]:
    """Clients at work while the block breaks something; afterwards everything is whole again."""
    world.apply(topic(TOPIC, partitions=6, replicas=3))
    world.until_ready("kafkatopic", TOPIC)
    until_in_sync(world)
    with load(world.bootstrap, TOPIC) as account:
        yield account
        world.until_ready("kafkacluster", CLUSTER, HEAL_SECONDS)
        until_in_sync(world)
    assert account.problems == []
    assert account.acknowledged == account.sent


@pytest.mark.spec("OPR-45")
def test_pods_killed(installed: World) -> None:
    with under_load(installed) as account:
        for name in ("demo-0", "demo-2"):
            replace_pod(installed, name, "--force", "--grace-period=0")
            installed.until_ready("kafkacluster", CLUSTER, HEAL_SECONDS)
            until_in_sync(installed)
    installed.say(f"two pods were killed without grace, one after the other; meanwhile {account}")


@pytest.mark.spec("OPR-04")
@pytest.mark.spec("OPR-45")
@pytest.mark.spec("OPR-35")
@pytest.mark.timeout(900 + 2 * SECONDS_AWAY)
def test_operator_away(installed: World) -> None:
    """What it has made goes on without it; what was asked for meanwhile, and what it had begun, is done when it is
    back."""
    installed.apply(topic(CARRIED, partitions=1, replicas=2))
    installed.until_ready("kafkatopic", CARRIED)
    produce(installed, CARRIED, [os.urandom(10_000) for _ in range(500)])
    kept, gone = installed.view().topics[CARRIED].partitions[0].replicas
    row = {"topic": CARRIED, "partition": 0, "replicas": [kept, ({0, 1, 2} - {kept, gone}).pop()]}
    with under_load(installed) as account:
        installed.apply(reassignment(CARRIED, partitions=[row], throttle={"interBroker": "1Mi"}))
        installed.until_phase(CARRIED, "Running")
        installed.kubectl("scale", "deployment/ballast-operator", "--replicas=0")
        name = "app.kubernetes.io/name=ballast-operator"
        installed.until("the operator is gone", lambda: not installed.all("pods", name))
        replace_pod(installed, "demo-1", "--wait=false")
        until_in_sync(installed)
        installed.apply(topic("asked-meanwhile", partitions=1, replicas=3))
        seconds_pass(installed, SECONDS_AWAY)
        installed.kubectl("scale", "deployment/ballast-operator", "--replicas=2")
        installed.until_ready("kafkatopic", "asked-meanwhile")
        installed.until_phase(CARRIED, "Succeeded")
    installed.until("no throttle is left", lambda: not throttles_left(installed))
    installed.kubectl("delete", "reassignment", CARRIED)
    away = f"for {SECONDS_AWAY / 60:g} minutes " if SECONDS_AWAY else ""
    installed.say(
        f"{away}there was no operator: a replica moved on, a pod came back, a topic was asked for; meanwhile {account}"
    )


@pytest.mark.spec("OPR-04")
def test_daemons_killed(host: World) -> None:
    with under_load(host) as account:
        for name in ("kubelet", "kube-apiserver", "etcd", "kube-controller-manager", "containerd", "kube-proxy"):
            host.provider.node.kill(name)
            host.until(f"the API answers after {name} was killed", lambda: api_answers(host))
    host.say(f"kubelet, API server, etcd and three more were killed; meanwhile {account}")


@pytest.mark.spec("OPR-04")
def test_api_server_away(host: World) -> None:
    with under_load(host) as account:
        with host.provider.node.down("kube-apiserver"):
            seconds_pass(host, 20)
        host.until("the API answers again", lambda: api_answers(host))
        host.apply(topic("after-the-api", partitions=1, replicas=3))
        host.until_ready("kafkatopic", "after-the-api")
    host.say(f"20 s without an API server, and the operator goes on; meanwhile {account}")


def test_partitioned_broker(host: World) -> None:
    with under_load(host) as account, cut_off(host, "demo-1"):
        host.until("broker 1 is out of sync", lambda: out_of_sync(host, TOPIC, 1))
        seconds_pass(host, 5)
    host.say(f"broker 1 was cut off from the others and came back; meanwhile {account}")
