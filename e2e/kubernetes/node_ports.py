"""Whether the node ports of brokers lead to their pods.

Two daemons see to it: the controller manager writes down in EndpointSlices where each pod is, and kube-proxy makes
rules of the kernel of them. On a loaded machine, after faults of the node, one of them once did not follow for minutes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

POD_NAME = "statefulset.kubernetes.io/pod-name"
# -A KUBE-SEP-X -p tcp -m comment --comment "kafka/demo-0-outside:kafka" -m tcp -j DNAT --to-destination 10.0.0.7:9094
RULE = re.compile(r'^-A KUBE-SEP-.* --comment "?([^\s"/]+)/([^\s":]+).* -j DNAT --to-destination (\S+):\d+', re.M)


class Way(NamedTuple):
    """Where the pod of a Service is, and where those who see to it believe that it is."""

    service: str
    pod: str
    address: str
    slices: Set[str]
    rules: Set[str]

    @property
    def late(self) -> str:
        """The daemon that does not follow; empty if both do."""
        if self.slices != {self.address}:
            return "kube-controller-manager"
        return "kube-proxy" if self.rules != {self.address} else ""

    def __str__(self) -> str:
        slices, rules = (" and ".join(sorted(found)) or "nowhere" for found in (self.slices, self.rules))
        return f"{self.pod} is at {self.address}; of Service {self.service}, slices name {slices}, rules lead {rules}"


def ways(
    services: Iterable[Mapping[str, Any]],
    pods: Mapping[str, Mapping[str, Any]],
    slices: Iterable[Mapping[str, Any]],
    rules: str,
) -> list[Way]:
    """Those of every Service with node ports whose one pod runs; `rules` is what iptables-save prints."""
    named: dict[str, set[str]] = defaultdict(set)
    for one in slices:
        for endpoint in one.get("endpoints") or ():
            named[one["metadata"]["labels"]["kubernetes.io/service-name"]].update(endpoint["addresses"])
    led: dict[tuple[str, str], set[str]] = defaultdict(set)
    for namespace, service, address in RULE.findall(rules):
        led[namespace, service].add(address)
    found = []
    for one in services:
        meta, spec = one["metadata"], one["spec"]
        pod = (spec.get("selector") or {}).get(POD_NAME, "")
        status = pods.get(pod, {}).get("status", {})
        address = status.get("podIP") if status.get("phase") == "Running" else None
        if spec["type"] == "NodePort" and address:
            name = meta["name"]
            found.append(Way(name, pod, address, named[name], led[meta["namespace"], name]))
    return found
