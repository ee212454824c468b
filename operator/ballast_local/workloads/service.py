"""Services: allocates addresses and node ports, writes Endpoints and EndpointSlices, and runs TCP proxies."""

import asyncio
import random
import socket
from collections.abc import Coroutine, Iterable

from ballast_local import meta
from ballast_local.builtin_checks import NODE_PORTS
from ballast_local.errors import ApiError, Obj
from ballast_local.selectors import selector_matches
from ballast_local.store import Change
from ballast_local.workloads.addresses import Addresses
from ballast_local.workloads.client import Client
from ballast_local.workloads.controller import LOG, Controller, Key, is_ready
from ballast_local.workloads.probe import port_number
from ballast_local.workloads.proxy import Endpoint, Proxy

LISTEN_AGAIN_SECONDS = 1.0
SLICES = "endpointslices.discovery.k8s.io"
Listening = tuple[str, int]


class ServiceController(Controller):
    primary = ("services.",)
    owned = ("pods.",)

    def __init__(self, client: Client, addresses: Addresses) -> None:
        super().__init__(client)
        self._addresses = addresses
        self._proxies: dict[Key, dict[Listening, Proxy]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def keys_of(self, change: Change) -> Iterable[Key]:
        if change.entry.resource == "services.":
            yield change.entry.namespace, change.entry.name
            return
        for entry in self.client.store.entries("services.", change.entry.namespace):
            selector = entry.object()["spec"].get("selector")
            labels = [one.labels for one in (change.entry, change.previous) if one is not None]
            if selector and any(selector_matches({"matchLabels": selector}, held) for held in labels):
                yield entry.namespace, entry.name

    async def stop(self) -> None:
        await super().stop()
        for proxies in self._proxies.values():
            for proxy in proxies.values():
                await proxy.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def reconcile(self, namespace: str, name: str) -> float | None:
        service = self.client.get("services.", namespace, name)
        if service is None or meta.is_deleting(service):
            self._addresses.release(f"service/{namespace}/{name}")
            self._serve((namespace, name), {})
            return None
        service = self._allocate(service)
        if service["spec"]["type"] == "ExternalName" or not service["spec"].get("selector"):
            return None
        pods = [pod for pod in self.client.find("pods.", namespace, {"matchLabels": service["spec"]["selector"]})
                if pod.get("status", {}).get("podIP") and pod["status"].get("phase") == "Running"]  # fmt: skip
        early = service["spec"].get("publishNotReadyAddresses", False)
        self._write_endpoints(service, pods, early)
        self._write_slices(service, pods, early)
        self._serve((namespace, name), self._wanted(service, [pod for pod in pods if early or is_ready(pod)]))
        return None

    # addresses and ports

    def _allocate(self, service: Obj) -> Obj:
        spec, metadata = service["spec"], service["metadata"]
        address = spec.get("clusterIP")
        if not address and spec["type"] != "ExternalName":
            address = self._addresses.take(f"service/{metadata['namespace']}/{metadata['name']}")
        ports = [dict(port) for port in spec.get("ports") or []]
        if spec["type"] in ("NodePort", "LoadBalancer"):
            taken = {
                port.get("nodePort") for one in self.client.find("services.") for port in one["spec"].get("ports") or []
            }
            for port in ports:
                if not port.get("nodePort"):
                    free = [number for number in NODE_PORTS if number not in taken]
                    random.shuffle(free)
                    port["nodePort"] = next(filter(_can_listen, free))
                    taken.add(port["nodePort"])
        wanted = {"ports": ports} if ports else {}
        if address:
            wanted |= {"clusterIP": address, "clusterIPs": [address]}
        if all(spec.get(field) == value for field, value in wanted.items()):
            return service
        changed = self.client.change(
            "services.", metadata["namespace"], metadata["name"], lambda held: held["spec"].update(wanted)
        )
        return changed or service

    def _target(self, port: Obj, pod: Obj) -> int | None:
        for container in pod["spec"]["containers"]:
            try:
                return port_number(port.get("targetPort", port["port"]), container)
            except ValueError:
                continue
        return None

    # endpoints

    def _by_ports(self, service: Obj, pods: list[Obj]) -> list[tuple[list[Obj], list[Obj]]]:
        """Group pods by their target ports: a named port may have a different number in each pod, or none."""
        groups: dict[tuple[int | None, ...], list[Obj]] = {}
        asked = service["spec"].get("ports") or []
        for pod in pods:
            groups.setdefault(tuple(self._target(port, pod) for port in asked), []).append(pod)
        return [
            (
                [
                    ({"name": port["name"]} if port.get("name") else {})
                    | {"port": target, "protocol": port.get("protocol", "TCP")}
                    for port, target in zip(asked, targets, strict=True)
                    if target is not None
                ],
                group,
            )
            for targets, group in sorted(groups.items(), key=lambda row: [target or 0 for target in row[0]])
        ]

    def _write_endpoints(self, service: Obj, pods: list[Obj], early: bool) -> None:
        subsets = [_subset(ports, group, early) for ports, group in self._by_ports(service, pods)]
        self._put("endpoints.", service, service["metadata"]["name"], {"subsets": subsets}, {})

    def _write_slices(self, service: Obj, pods: list[Obj], early: bool) -> None:
        """Write one slice per group of pods: all endpoints of a slice have the same ports."""
        name = service["metadata"]["name"]
        labels = {
            "kubernetes.io/service-name": name,
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller",
        }
        kept = set()
        for index, (ports, group) in enumerate(self._by_ports(service, pods) or [([], [])], 1):
            endpoints = [_endpoint(pod, early) for pod in group]
            named = [{"name": "", **port} for port in ports]
            content = {"addressType": "IPv4", "endpoints": endpoints, "ports": named}
            own = f"{name}-local-{index}" if index > 1 else f"{name}-local"
            self._put(SLICES, service, own, content, labels)
            kept.add(own)
        for held in self.client.owned(service["metadata"]["uid"], SLICES):
            if held["metadata"]["name"] not in kept:
                self.client.delete(SLICES, service["metadata"]["namespace"], held["metadata"]["name"])

    def _put(self, key: str, service: Obj, name: str, content: Obj, labels: dict[str, str]) -> None:
        namespace = service["metadata"]["namespace"]
        held = self.client.get(key, namespace, name)
        if held is None:
            references = [meta.owner_reference(service)]
            metadata = {
                "name": name,
                "labels": (service["metadata"].get("labels") or {}) | labels,
                "ownerReferences": references,
            }
            try:
                self.client.create(key, namespace, {"metadata": metadata, **content})
            except ApiError as refusal:
                if refusal.code != 403:
                    raise
        elif any(held.get(field) != value for field, value in content.items()):
            self.client.change(key, namespace, name, lambda obj: obj.update(content))

    # proxies

    def _wanted(self, service: Obj, pods: list[Obj]) -> dict[Listening, list[Endpoint]]:
        spec = service["spec"]
        found: dict[Listening, list[Endpoint]] = {}
        for port in spec.get("ports") or []:
            if port.get("protocol", "TCP") != "TCP":
                continue
            endpoints = [(pod["status"]["podIP"], target) for pod in pods if (target := self._target(port, pod))]
            if spec.get("clusterIP") not in (None, "", "None", "127.0.0.1"):
                found[(spec["clusterIP"], port["port"])] = endpoints
            if port.get("nodePort"):
                found[("127.0.0.1", port["nodePort"])] = endpoints
        return found

    def _serve(self, key: Key, wanted: dict[Listening, list[Endpoint]]) -> None:
        held = self._proxies.setdefault(key, {})
        for listening in [one for one in held if one not in wanted]:
            self._spawn(held.pop(listening).stop())
        for listening, endpoints in wanted.items():
            proxy = held.get(listening)
            if proxy is None:
                proxy = held[listening] = Proxy()
                self._spawn(self._listen(key, proxy, listening))
            proxy.endpoints = endpoints
        if not held:
            del self._proxies[key]

    async def _listen(self, key: Key, proxy: Proxy, listening: Listening) -> None:
        """Start a proxy; retries while the address is in use, until the proxy is no longer wanted."""
        told = False
        while self._proxies.get(key, {}).get(listening) is proxy:
            try:
                await proxy.start(*listening)
                return
            except OSError as fault:
                service = self.client.get("services.", *key)
                if service is not None and not told:
                    told = True
                    message = f"cannot listen on {listening[0]}:{listening[1]}: {fault.strerror}"
                    LOG.info("service %s: %s", key, message)
                    self.client.event(service, "Warning", "FailedListen", message)
            await asyncio.sleep(LISTEN_AGAIN_SECONDS)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _can_listen(port: int) -> bool:
    """Whether the port is free on this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _subset(ports: list[Obj], pods: list[Obj], early: bool) -> Obj:
    subset: Obj = {}
    for field, wanted in (("addresses", True), ("notReadyAddresses", False)):
        found = [_address(pod) for pod in pods if (early or is_ready(pod)) is wanted]
        if found:
            subset[field] = found
    return subset | ({"ports": ports} if ports else {})


def _endpoint(pod: Obj, early: bool) -> Obj:
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {
            "ready": early or is_ready(pod),
            "serving": is_ready(pod),
            "terminating": meta.is_deleting(pod),
        },
        "hostname": pod["spec"].get("hostname", ""),
        "nodeName": "local",
        "targetRef": _reference(pod),
    }


def _reference(pod: Obj) -> Obj:
    metadata = pod["metadata"]
    return {"kind": "Pod", "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]}


def _address(pod: Obj) -> Obj:
    result = {"ip": pod["status"]["podIP"], "nodeName": "local", "targetRef": _reference(pod)}
    return result | ({"hostname": pod["spec"]["hostname"]} if pod["spec"].get("hostname") else {})
