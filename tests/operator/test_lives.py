"""The operator killed at each change that it makes, life after life, or with a Kubernetes in trouble: the end is that
of one that was let be."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.operator.lives import Trouble, differences, told
from tests.operator.stories import STORIES

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
