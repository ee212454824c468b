"""The operator killed at each change that it makes, life after life, or with a Kubernetes in trouble: the end is that
of one that was let be."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.operator.lives import KEY, Deed, Story, Trouble, differences, told
from tests.operator.stories import STORIES, cluster, secret, topics

from ballast_operator.handlers.plans import Plans
from ballast_operator.plan import contents, stored

TROUBLED = (
    "born", "fewer brokers", "more brokers and a volume", "fewer controllers", "topics and a move", "all deleted",
)  # fmt: skip


@pytest.mark.spec("OPR-04")
@pytest.mark.parametrize("name", STORIES)
async def test_operators_that_are_killed_at_each_change_come_to_the_same_end(name: str, tmp_path: Path) -> None:
    undisturbed = await told(STORIES[name], tmp_path, None)
    assert undisturbed.findings + undisturbed.kafka.findings == []
    for most in (1, 5):
        world = await told(STORIES[name], tmp_path, most)
        assert world.findings + world.kafka.findings == []
        assert differences(undisturbed.end(), world.end()) == [], f"each killed at its change {most}"


@pytest.mark.spec("OPR-04", "OPR-40")
async def test_so_they_do_where_secrets_are_renewed_in_the_middle_of_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    names = ",".join(f"DNS:{KEY.name}-{broker}.{KEY.name}-brokers.{KEY.namespace}.svc" for broker in range(3))

    def certificate(name: str) -> Deed:
        whole = authority.issue(name, subject="/CN=node", names=names)
        files = {"tls.key": whole.with_suffix(".key"), "tls.crt": whole.with_suffix(".crt"), "ca.crt": authority.ca}
        return secret("internal", **{key: file.read_text() for key, file in files.items()})

    security = {
        "internal": {"tls": {"secretName": "internal"}},
        "authorization": {"type": "Simple"},
        "delegationTokens": {"secretName": "tokens"},
    }
    listener = {"name": "PLAINTEXT", "port": 9092, "authentication": {"type": "SCRAM-SHA-512"}}
    secured = cluster(listeners=[listener], security=security)
    begins = [certificate("first"), secret("tokens", secretKey="a" * 32), secured, topics]
    story = Story(begins, [secret("tokens", secretKey="b" * 32), certificate("second")], apart=2)
    undisturbed = await told(story, tmp_path, None)
    assert undisturbed.findings + undisturbed.kafka.findings == []
    evicted = [change for life in undisturbed.lives for change in life.changes if change.endswith("/eviction")]
    assert len(evicted) == 3, "tokens of before count no more"
    world = await told(story, tmp_path, 1)
    assert world.findings + world.kafka.findings == []
    assert differences(undisturbed.end(), world.end()) == []


@pytest.mark.spec("OPR-05")
@pytest.mark.parametrize("name", TROUBLED)
async def test_trouble_with_kubernetes_changes_nothing_in_the_end(name: str, tmp_path: Path) -> None:
    undisturbed = await told(STORIES[name], tmp_path, None)
    trouble = Trouble(1)
    world = await told(STORIES[name], tmp_path, None, trouble=trouble)
    assert trouble.befell > 20
    assert world.findings + world.kafka.findings == []
    assert differences(undisturbed.end(), world.end()) == []


@pytest.mark.spec("OPR-04")
@pytest.mark.parametrize("most", [1, 2])
async def test_a_plan_in_several_parts_is_not_begun_anew(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "CHUNK_BYTES", 60)
    undisturbed = await told(STORIES["fewer brokers"], tmp_path, None)
    world = await told(STORIES["fewer brokers"], tmp_path, most)
    assert world.findings + world.kafka.findings == []
    assert differences(undisturbed.end(), world.end()) == []


async def test_a_plan_that_each_life_keeps_anew_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgotten(*_: object) -> None:
        return None

    monkeypatch.setattr(Plans, "_own_config_map", forgotten)
    with pytest.raises(AssertionError, match="no end after"):
        await told(STORIES["fewer brokers"], tmp_path, 1)


async def test_a_broker_that_is_removed_with_its_replicas_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "replicas_on", lambda *_: 0)
    world = await told(STORIES["no more from outside"], tmp_path, None)
    assert any("when that was removed" in found for found in world.findings)
