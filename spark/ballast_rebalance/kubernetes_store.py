"""Keeps proposals in a real Kubernetes API, through its ordinary client. Driver only; blocking.

If the API refuses or cannot be reached, that is a Refusal, KubernetesUnavailable: the next look tries again.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.request import getproxies

from ballast_rebalance.measured import Refusal
from ballast_rebalance.prometheus_http import alike, is_here

GROUP, VERSION, PLURAL, CLUSTERS, TOPICS = "ballast.dev", "v1alpha1", "reassignments", "kafkaclusters", "kafkatopics"
PAGE = 500
CONFLICT, NOT_FOUND = 409, 404
IN_POD = "KUBERNETES_SERVICE_HOST"
ANSWER_SECONDS = 60.0
# A deleted Reassignment that was carried out keeps its name until the operator lets it go.
GONE_SECONDS, GONE_POLL_SECONDS = 30.0, 0.2


class KubernetesStore:
    def __init__(self, namespace: str, kubeconfig: str | None = None) -> None:
        from kubernetes import client, config

        if kubeconfig is None and IN_POD in os.environ:
            config.load_incluster_config()  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(config_file=kubeconfig)  # type: ignore[no-untyped-call]
        from urllib3.exceptions import HTTPError

        self.namespace = namespace
        self._error, self._unreachable = client.ApiException, HTTPError
        configuration = client.Configuration.get_default_copy()
        if is_here(configuration.host) and configuration.proxy in getproxies().values():
            configuration.proxy = None  # of the environment, for hosts elsewhere, not of the kubeconfig
        self._client: Any = client.ApiClient(configuration)
        rest: Any = self._client.rest_client
        rest.pool_manager.connection_pool_kw["ssl_context"] = _context(configuration)
        request = rest.request
        # By default the client waits forever for an API that has accepted the connection, and so would a watching job.
        limit = {"_request_timeout": ANSWER_SECONDS}
        rest.request = lambda *words, **options: request(*words, **{**options, **limit})
        self._objects: Any = client.CustomObjectsApi(self._client)
        self._core: Any = client.CoreV1Api(self._client)

    def close(self) -> None:
        """Close the connections; the client's own `close` leaves them to the garbage collector."""
        self._client.rest_client.pool_manager.clear()
        self._client.close()

    def list_reassignments(self) -> list[dict[str, Any]]:
        with self._asking("Reassignments cannot be listed"):
            answer = self._objects.list_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL)
        items: list[dict[str, Any]] = answer["items"]
        return items

    def pinned_topics(self, cluster: str) -> frozenset[str]:
        """Topics whose KafkaTopic names the brokers of each partition: the operator would move them back."""
        pinned: set[str] = set()
        more = ""
        while True:
            with self._asking("KafkaTopics cannot be listed"):
                page = self._objects.list_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, TOPICS, limit=PAGE, **({"_continue": more} if more else {})
                )
            for item in page["items"]:
                spec = item["spec"]
                if spec.get("replicaAssignment") and spec["clusterRef"]["name"] == cluster:
                    pinned.add(spec.get("topicName") or item["metadata"]["name"])
            more = page["metadata"].get("continue") or ""
            if not more:
                return frozenset(pinned)

    def read_plan(self, config_map: str) -> dict[str, Any] | None:
        """A ConfigMap of a plan, None if it is gone."""
        with self._asking(f"ConfigMap {config_map} cannot be read"):
            try:
                return {"data": self._core.read_namespaced_config_map(config_map, self.namespace).data}
            except self._error as error:
                if error.status != NOT_FOUND:
                    raise
                return None

    def create_plan(self, config_map: Mapping[str, Any]) -> None:
        """Create a ConfigMap of a plan. One of that name is left from a look that got no further: it has the same plan.

        Unless it has an owner: that has ended and was deleted, so the ConfigMap is about to be deleted as well.
        """
        name = config_map["metadata"]["name"]
        deadline = time.monotonic() + GONE_SECONDS
        while not self._made(config_map):
            if time.monotonic() > deadline:
                raise Refusal("ReassignmentInProgress", f"ConfigMap {name} of an earlier one is still there")
            time.sleep(GONE_POLL_SECONDS)

    def _made(self, config_map: Mapping[str, Any]) -> bool:
        name = config_map["metadata"]["name"]
        with self._asking(f"ConfigMap {name} cannot be made"):
            try:
                self._core.create_namespaced_config_map(self.namespace, config_map)
                return True
            except self._error as error:
                if error.status != CONFLICT:
                    raise
            try:
                found = self._core.read_namespaced_config_map(name, self.namespace).metadata
            except self._error as error:
                if error.status != NOT_FOUND:
                    raise
                return False
            return not found.owner_references and found.deletion_timestamp is None

    def create(self, resource: Mapping[str, Any]) -> dict[str, Any]:
        name = resource["metadata"]["name"]
        with self._asking(f"Reassignment {name} cannot be made"):
            try:
                answer: dict[str, Any] = self._objects.create_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, PLURAL, dict(resource)
                )
            except self._error as error:
                if error.status == CONFLICT:  # by another job, after we listed them all
                    raise Refusal("AlreadyProposed", f"the same plan was proposed just now, as {name}") from error
                raise
        return answer

    def tell(self, cluster: str, look: Mapping[str, Any]) -> str | None:
        """Write the outcome of a look into the KafkaCluster's status; returns why not if that fails."""
        try:
            self._objects.patch_namespaced_custom_object_status(
                GROUP, VERSION, self.namespace, CLUSTERS, cluster, {"status": {"rebalance": dict(look)}}
            )
        except (self._error, self._unreachable) as error:
            return f"KafkaCluster {cluster} was not told: {_said(error)}"
        return None

    def own(self, config_map: str, owner: Mapping[str, Any]) -> None:
        """Make the Reassignment the owner of the ConfigMap, so that they are deleted together."""
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }
        body = {"metadata": {"ownerReferences": [reference]}}
        with self._asking(f"ConfigMap {config_map} cannot be given its owner"):
            self._core.patch_namespaced_config_map(config_map, self.namespace, body)

    def delete_unchanged(self, resource: Mapping[str, Any]) -> bool:
        """Delete it if it is still what was read, and wait until it is gone; False if somebody has changed it."""
        metadata = resource["metadata"]
        conditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        with self._asking(f"Reassignment {metadata['name']} cannot be deleted"):
            try:
                self._objects.delete_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, PLURAL, metadata["name"], body={"preconditions": conditions}
                )
            except self._error as error:
                if error.status == NOT_FOUND:
                    return True
                if error.status == CONFLICT:
                    return False
                raise
        self._until_gone(metadata["name"], metadata["uid"])
        return True

    def _until_gone(self, name: str, uid: str) -> None:
        deadline = time.monotonic() + GONE_SECONDS
        while True:
            with self._asking(f"Reassignment {name} cannot be looked for"):
                answer = self._objects.list_namespaced_custom_object(
                    GROUP, VERSION, self.namespace, PLURAL, field_selector=f"metadata.name={name}"
                )
            if all(one["metadata"]["uid"] != uid for one in answer["items"]):
                return
            if time.monotonic() > deadline:
                raise Refusal("ReassignmentInProgress", f"{name} is still being deleted")
            time.sleep(GONE_POLL_SECONDS)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except (self._error, self._unreachable) as error:
            raise Refusal("KubernetesUnavailable", f"{what}: {_said(error)}") from error


def _context(configuration: Any) -> ssl.SSLContext:
    """A context that is `alike` on every Python, as the client's own is not. The client adds its own certificate."""
    authorities = {"cafile": configuration.ssl_ca_cert, "cadata": configuration.ca_cert_data}
    context = alike(ssl.create_default_context(**authorities))
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _said(error: Exception) -> str:
    status = getattr(error, "status", None)
    return str(error) if status is None else f"{status} {getattr(error, 'reason', '')}"
