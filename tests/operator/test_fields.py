"""Objects as JSON are read whole, or it is told which field is wrong."""

from typing import Any

import pytest
from tests.operator.making import cluster, reassignment, topic

from ballast_operator.model.cluster import Volume
from ballast_operator.model.fields import FieldError
from ballast_operator.model.quantity import counted, parse_quantity
from ballast_operator.model.reassignment import Approval

RIGHT = {"name": "a", "size": 1024}


def test_what_is_absent_takes_its_default_and_numbers_may_be_quantities() -> None:
    found = cluster(volumes=[RIGHT], config={"a": 1}, rack=None)
    assert found.spec.volumes == (Volume("a", "1024"),)
    assert (found.spec.config, found.spec.rack, found.spec.brokers) == ({"a": "1"}, None, 3)
    assert reassignment(approval="Required").spec.approval is Approval.REQUIRED


@pytest.mark.spec("OPR-20")
@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("false", "false"), (False, "false"), (True, "true"), (1, "1"), (0.5, "0.5"), (-0.25, "-0.25"),
        (1000.0, "1000"), (1e21, "1000000000000000000000"), (1e-7, "0.0000001"),
    ],
)  # fmt: skip
def test_a_value_that_yaml_takes_for_no_text_is_sent_as_kafka_writes_it(given: object, sent: str) -> None:
    assert topic(config={"a": given}).spec.config == {"a": sent}


@pytest.mark.spec("OPR-43")
@pytest.mark.parametrize(
    ("asked", "kept"),
    [("2.3Gi", "2469606195200m"), ("0.1Gi", "107374182400m"), ("1e12", "1e12"), ("2E", "2E"), ("1Ei", "1Ei")],
)
def test_sizes_are_understood_as_kubernetes_writes_them(asked: str, kept: str) -> None:
    """It keeps quantities in another form than they were written in, and people write to claims what it allows."""
    assert parse_quantity(kept) == parse_quantity(asked)
    sizes = {"2.3Gi": 2469606196, "0.1Gi": 107374183, "1e12": 10**12, "2E": 2 * 10**18, "1Ei": 2**60}
    assert parse_quantity(asked) == sizes[asked]


@pytest.mark.spec("OPR-01")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"brokers": "many"}, 'spec.brokers: must be a whole number, not "many"'),
        ({"brokers": True}, "spec.brokers: must be a whole number, not true"),
        ({"volumes": {}}, "spec.volumes: must be a list"),
        ({"volumes": [RIGHT, {**RIGHT, "weight": "x"}]}, 'spec.volumes[1].weight: must be a whole number, not "x"'),
        ({"volumes": [RIGHT, "b"]}, "spec.volumes[1]: must be a mapping of names to values"),
        ({"config": {"a": ["b"]}}, 'spec.config.a: must be text, not ["b"]'),
        ({"config": []}, "spec.config: must be a mapping of names to values"),
        ({"storage": {"deleteClaim": "yes"}}, 'spec.storage.deleteClaim: must be true or false, not "yes"'),
        (
            {"podTemplate": {"spec": {"affinity": []}}},
            "spec.podTemplate.spec.affinity: must be a mapping of names to values",
        ),
        (
            {"podTemplate": {"spec": {"affinity": None, "topologySpreadConstraints": {"a": 1}}}},
            "spec.podTemplate.spec.topologySpreadConstraints: must be a list",
        ),
        ({"imagePullPolicy": "Now"}, 'spec.imagePullPolicy: must be one of Always, IfNotPresent, Never, not "Now"'),
    ],
)
def test_the_field_that_is_wrong_is_named(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(FieldError) as error:
        cluster(**spec)
    assert str(error.value) == said


@pytest.mark.spec("OPR-01")
def test_a_field_that_has_to_be_there_is_named() -> None:
    with pytest.raises(FieldError, match=r"^spec.volumes\[0\]: lacks size$"):
        cluster(volumes=[{"name": "a"}])


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 partitions"), (1, "1 partition"), (2, "2 partitions"), (1_000, "1000 partitions")]
)
def test_one_is_not_told_as_many(count: int, told: str) -> None:
    assert counted(count, "partition") == told


@pytest.mark.spec("OPR-31", "OPR-32")
@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "2026-01-01T00:00:00+99:00"])
def test_a_time_that_cannot_be_compared_is_that_objects_own_trouble(time: str) -> None:
    """All Reassignments of a cluster are looked at together."""
    with pytest.raises(FieldError, match=r"^spec.expiresAt: '.*' is no time$"):
        reassignment(expiresAt=time)
    assert reassignment(expiresAt="2026-01-01t00:00:00.123456789z").spec.expires_at
