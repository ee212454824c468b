"""`./ballast up` again, with other numbers: what is there stays but for these."""

import socket

import pytest
import yaml
from tests.local.conftest import APPLY, DEFINITIONS, Running

from ballast_cli.up import ROOT, _serving, changed_cluster, example_cluster

CLUSTERS = "/apis/ballast.dev/v1alpha1/namespaces/default/kafkaclusters"


@pytest.mark.spec("OPR-40")
def test_a_number_that_is_not_asked_for_stays(tmp_path):
    """Started with five volumes, a cluster does not give two of them up because it is to get a broker."""
    running = Running(tmp_path)
    try:
        api = running.api()
        api.post(DEFINITIONS, yaml.safe_load((ROOT / "crds" / "kafkaclusters.yaml").read_text()))

        def apply(body):
            return api.patch(f"{CLUSTERS}/demo?fieldManager=ballast&force=true", body, APPLY)

        apply(example_cluster(None, 5))
        found = api.patch(f"{CLUSTERS}/demo", {"spec": {"config": {"num.io.threads": "3"}}})
        names = [f"disk-{index}" for index in range(5)]
        found = apply(changed_cluster(found, 4, None))
        assert found["spec"]["brokers"] == 4
        assert [one["name"] for one in found["spec"]["volumes"]] == names
        found["spec"]["volumes"][0]["size"] = "20Gi"
        found = apply(changed_cluster(found, None, 6))
        assert found["spec"]["brokers"] == 4
        assert [one["name"] for one in found["spec"]["volumes"]] == [*names, "disk-5"]
        assert [one["size"] for one in found["spec"]["volumes"]][:2] == ["20Gi", "10Gi"]
        found = apply(changed_cluster(found, 5, 2))
        assert [one["name"] for one in found["spec"]["volumes"]] == names[:2]
        assert found["spec"]["config"] == {"num.io.threads": "3"}
    finally:
        running.close()


@pytest.mark.spec("OPR-40")
@pytest.mark.parametrize("asks", [{"tls": {"secretName": "own"}}, {"authentication": {"type": "SCRAM-SHA-512"}}])
async def test_a_cluster_that_asks_who_one_is_can_be_started_again(asks):
    """Nobody here has a name there: that its brokers take connections has to do, or it would be stopped again."""
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as gone:
        both = [f"127.0.0.1:{one.getsockname()[1]}" for one in (there, gone)]
        listener = {"name": "CLIENTS", "port": 9092, **asks}
        body = {"spec": {"brokers": 2, "listeners": [listener]}, "status": {"bootstrapServers": ",".join(both)}}
        assert await _serving(body)
        gone.close()
        assert not await _serving(body)
