"""Proposals in a real Kubernetes API, through its ordinary client. Driver only; blocking."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

GROUP, VERSION, PLURAL, CLUSTERS = "ballast.dev", "v1alpha1", "reassignments", "kafkaclusters"
CONFLICT, NOT_FOUND = 409, 404
IN_POD = "KUBERNETES_SERVICE_HOST"


class KubernetesStore:
    def __init__(self, namespace: str, kubeconfig: str | None = None) -> None:
        from kubernetes import client, config

        if kubeconfig is None and IN_POD in os.environ:
            config.load_incluster_config()  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(config_file=kubeconfig)  # type: ignore[no-untyped-call]
        self.namespace = namespace
        self._error = client.ApiException
        self._client: Any = client.ApiClient()
        self._objects: Any = client.CustomObjectsApi(self._client)
        self._core: Any = client.CoreV1Api(self._client)

    def close(self) -> None:
        """Close the connections; the client's own `close` leaves them to the garbage collector."""
        self._client.rest_client.pool_manager.clear()
        self._client.close()

    def list_reassignments(self, label_selector: str) -> list[dict[str, Any]]:
        answer = self._objects.list_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, label_selector=label_selector
        )
        items: list[dict[str, Any]] = answer["items"]
        return items

    def create(self, resource: Mapping[str, Any]) -> dict[str, Any]:
        if resource["kind"] == "ConfigMap":
            created: dict[str, Any] = self._core.create_namespaced_config_map(self.namespace, resource).to_dict()
            return created
        answer: dict[str, Any] = self._objects.create_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, dict(resource)
        )
        return answer

    def tell(self, cluster: str, look: Mapping[str, Any]) -> str | None:
        """Write what a look came to into the KafkaCluster's status; why not, where that is not possible."""
        try:
            self._objects.patch_namespaced_custom_object_status(
                GROUP, VERSION, self.namespace, CLUSTERS, cluster, {"status": {"rebalance": dict(look)}}
            )
        except self._error as error:
            return f"KafkaCluster {cluster} was not told: {error.status} {error.reason}"
        return None

    def own(self, config_map: str, owner: Mapping[str, Any]) -> None:
        """The ConfigMap goes when the Reassignment goes."""
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }
        body = {"metadata": {"ownerReferences": [reference]}}
        self._core.patch_namespaced_config_map(config_map, self.namespace, body)

    def delete_unchanged(self, resource: Mapping[str, Any]) -> bool:
        """Delete it if it is still what was read; False if somebody changed it in between."""
        metadata = resource["metadata"]
        conditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
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
        return True
