"""Inflicts faults on brokers and on the network between them, one at a time, and undoes them.

The name of a kind says which broker it hits: "... a leader", "... the controller", "... a follower", else any.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from e2e.hosts import Hosts
from e2e.processes import BrokerProcess, Cluster

OF_PROCESSES = (
    "kill a leader", "kill a follower", "kill the controller", "kill two in turn", "freeze a leader",
    "restart in order", "kill as another returns", "freeze any", "kill all", "step a clock",
)  # fmt: skip
OF_THE_NETWORK = (
    "cut off a leader", "cut off the controller", "unplug any", "unplug the controller", "deafen a leader",
    "deafen the controller", "mute a follower", "mute the controller", "part two",
)  # fmt: skip
OF_LONG_RUNS = ("freeze for a minute",)
# Less than an hour back: a broker rightly refuses records that are an hour ahead of its clock.
CLOCK_OFFSETS_MS = (-1_800_000, -60_000, -5_000, 0, 60_000)
FREEZE_S = (0.5, 3.0, 8.0, 15.0)
CUT_S = (1.0, 4.0, 8.0, 15.0)  # shorter and longer than a broker's session
DOWN_S = (0.0, 0.5, 2.0, 7.0)


def kinds(*, network: bool, long: bool = False) -> tuple[str, ...]:
    """The kinds that a run draws from."""
    return OF_PROCESSES + (OF_THE_NETWORK if network else ()) + (OF_LONG_RUNS if long else ())


@dataclass
class Roles:
    leaders: dict[int, int] = field(default_factory=dict)
    controller: int | None = None


class Faults:
    """`hosts` is needed for faults of the network."""

    def __init__(self, cluster: Cluster, hosts: Hosts | None, roles: Callable[[], Roles]) -> None:
        self._brokers = cluster.brokers
        self._hosts = hosts
        self._look = roles
        self._roles = Roles()
        self._rng = random.Random()

    def inflict(self, kind: str, rng: random.Random) -> str:
        """Inflict a fault and undo it, except that brokers may be left stopped. Returns what was done."""
        self._rng, self._roles = rng, self._look()
        down = rng.choice(DOWN_S)
        victim = self._victim(kind)
        label = self._label(victim)
        if kind == "restart in order":
            victim.stop()
            time.sleep(down)
            return f"{label} restarted in order, down for {down} s"
        if kind.startswith("freeze"):
            seconds = 60.0 if kind == "freeze for a minute" else rng.choice(FREEZE_S)
            victim.pause()
            time.sleep(seconds)
            victim.resume()
            return f"{label} frozen for {seconds} s"
        if kind == "step a clock":
            offset_ms = rng.choice(CLOCK_OFFSETS_MS)
            victim.set_clock(offset_ms)
            time.sleep(down)
            return f"the clock of {label} steps to {offset_ms / 1000:g} s"
        if kind == "kill all":
            for broker in rng.sample(self._brokers, len(self._brokers)):
                broker.kill()
            return "kill -9 of all"
        if kind in ("kill two in turn", "kill as another returns"):
            return self._kill_two(kind, victim, label, down)
        if kind in OF_THE_NETWORK:
            return self._disturb(kind, victim, label)
        victim.kill()
        time.sleep(down)
        return f"kill -9 of {label}, down for {down} s"

    def _kill_two(self, kind: str, victim: BrokerProcess, label: str, down: float) -> str:
        other = self._another(victim)
        victim.kill()
        time.sleep(down)
        if kind == "kill as another returns":
            victim.start()
            victim.wait_ready()
            time.sleep(self._rng.choice([0.0, 0.05, 0.5]))
            other.kill()
            return f"kill -9 of {label}, and of {self._label(other)} just when the first was back"
        other.kill()
        time.sleep(down)
        victim.start()
        time.sleep(self._rng.choice([0.0, 1.0, 3.0]))
        return f"kill -9 of {label}, then of {self._label(other)}, {down} s apart"

    def _disturb(self, kind: str, victim: BrokerProcess, label: str) -> str:
        """Clients still reach every broker, except one that is unplugged."""
        assert self._hosts is not None, "brokers have no hosts of their own"
        one = [victim.node_id]
        others = [broker.node_id for broker in self._brokers if broker is not victim]
        seconds = self._rng.choice(CUT_S)
        if kind.startswith("unplug"):
            self._hosts.unplug(victim.node_id)
            what = f"{label} is cut off from all"
        elif kind.startswith("deafen"):
            self._hosts.lose(others, one)
            what = f"{label} does not hear the other brokers"
        elif kind.startswith("mute"):
            self._hosts.lose(one, others)
            what = f"{label} is not heard by the other brokers"
        else:
            if kind == "part two":
                others = [self._another(victim).node_id]
            self._hosts.lose(one, others)
            self._hosts.lose(others, one)
            what = f"{label} is cut off from {' and '.join(map(str, others))}"
        time.sleep(seconds)
        self._hosts.heal()
        return f"{what} for {seconds} s"

    # -- whom

    def _another(self, victim: BrokerProcess) -> BrokerProcess:
        return self._rng.choice([broker for broker in self._brokers if broker is not victim])

    def _victim(self, kind: str) -> BrokerProcess:
        brokers: Sequence[BrokerProcess] = self._brokers
        leading = [broker for broker in brokers if broker.node_id in self._roles.leaders.values()]
        if kind.endswith("leader"):
            brokers = leading or brokers
        elif kind.endswith("controller"):
            brokers = [broker for broker in brokers if broker.node_id == self._roles.controller] or brokers
        elif kind.endswith("follower"):
            leads = list(self._roles.leaders.values())
            fewest = min(leads.count(broker.node_id) for broker in brokers)
            least = [broker for broker in brokers if leads.count(broker.node_id) == fewest]
            brokers = [broker for broker in least if broker.node_id != self._roles.controller] or least
        return self._rng.choice(brokers)

    def _label(self, broker: BrokerProcess) -> str:
        leads = list(self._roles.leaders.values())
        controller = ", the active controller" if self._roles.controller == broker.node_id else ""
        return f"broker {broker.node_id} (leads {leads.count(broker.node_id)} of {len(leads)}{controller})"
