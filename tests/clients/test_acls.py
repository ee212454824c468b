"""Access control entries by the administration of clients written by others, and what they then may do.

Nobody is authenticated, so everybody is ANONYMOUS: a topic with an entry for somebody else is closed to him, and what
no entry is about is open to all (`allow.everyone.if.no.acl.found`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import admin as confluent
from kafka import KafkaProducer
from kafka import admin as python
from kafka.errors import TopicAuthorizationFailedError
from tests.clients.running import RunningBroker
from tests.clients.test_java_tools import run
from tests.contract.wire import WireClient
from tests.docs.commands import to_type
from tests.waiting import eventually

from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-06")
PATIENCE_S = 30.0
REFUSED = "Processed a total of 0 messages"  # why, it logs
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    properties = {"authorizer_class_name": STANDARD, "allow_everyone_if_no_acl_found": "true"}
    running = RunningBroker(tmp_path_factory.mktemp("authorizing"), **properties).start()
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log_text(), running.log_text()


def binding(
    name: str,
    principal: str,
    operation: confluent.AclOperation = confluent.AclOperation.ALL,
    pattern: confluent.ResourcePatternType = confluent.ResourcePatternType.LITERAL,
    permission: confluent.AclPermissionType = confluent.AclPermissionType.ALLOW,
) -> confluent.AclBinding:
    kind = confluent.ResourceType.TOPIC
    return confluent.AclBinding(kind, name, pattern, principal, "*", operation, permission)


def refused_by_librdkafka(broker: RunningBroker, topic: str) -> int:
    """0 where the record is taken, else the error."""
    told: list[int] = []
    settings = {"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 25_000, "retries": 0}
    sender = Producer(settings)
    sender.produce(topic, b"value", on_delivery=lambda error, _: told.append(0 if error is None else error.code()))
    sender.flush(PATIENCE_S)
    return told[0]


def test_librdkafkas_administration(broker: RunningBroker, topic: str) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([confluent.NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    eventually(lambda: refused_by_librdkafka(broker, topic) == 0, "a topic without entries is open")
    of_alice = binding(topic, "User:alice")
    to_all = binding(topic[:-1], "User:*", confluent.AclOperation.READ, confluent.ResourcePatternType.PREFIXED)
    created = admin.create_acls([of_alice, to_all])
    for each in created.values():
        each.result(PATIENCE_S)
    matching = confluent.AclBindingFilter(
        confluent.ResourceType.TOPIC, topic, confluent.ResourcePatternType.MATCH, None, None,  # type: ignore[arg-type] # None is any
        confluent.AclOperation.ANY, confluent.AclPermissionType.ANY,
    )  # fmt: skip
    eventually(lambda: len(admin.describe_acls(matching).result(PATIENCE_S)) == 2, "both are described")
    assert set(admin.describe_acls(matching).result(PATIENCE_S)) == {of_alice, to_all}
    assert refused_by_librdkafka(broker, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    (deleted,) = [each.result(PATIENCE_S) for each in admin.delete_acls([matching]).values()]
    assert set(deleted) == {of_alice, to_all}
    eventually(lambda: refused_by_librdkafka(broker, topic) == 0, "it is open again")


def test_an_entry_that_may_not_be_is_refused_with_a_reason(broker: RunningBroker) -> None:
    admin = confluent.AdminClient({"bootstrap.servers": broker.bootstrap})
    (refused,) = admin.create_acls([binding("t", "nobody")]).values()
    with pytest.raises(KafkaException, match="Could not parse principal from `nobody`"):
        refused.result(PATIENCE_S)


def test_a_code_of_nothing_known_ends_the_connection_and_nothing_else(broker: RunningBroker) -> None:
    kind = message("CreateAclsRequest")
    entry = {"resource_name": "t", "principal": "User:a", "host": "*", "operation": 0, "permission_type": 3}
    for _ in range(2):
        client = WireClient("127.0.0.1", broker.port)
        with closing(client), pytest.raises(ConnectionError):
            client.call(kind(creations=[kind.AclCreation(resource_type=2, **entry)]), 3)


def is_open_to_kafka_python(broker: RunningBroker, topic: str) -> bool:
    with closing(KafkaProducer(bootstrap_servers=broker.bootstrap)) as sender:
        try:
            return bool(sender.send(topic, b"value").get(PATIENCE_S))
        except TopicAuthorizationFailedError:
            return False


def test_kafka_pythons_administration(broker: RunningBroker, topic: str) -> None:
    pattern = python.ResourcePattern(python.ResourceType.TOPIC, topic)
    of_alice = python.ACL("User:alice", "*", python.ACLOperation.WRITE, python.ACLPermissionType.ALLOW, pattern)
    anything = python.ACLFilter(None, None, python.ACLOperation.ANY, python.ACLPermissionType.ANY, pattern)
    with closing(python.KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        admin.create_topics([python.NewTopic(topic, 1, 1)])
        assert is_open_to_kafka_python(broker, topic)
        assert not admin.create_acls([of_alice])["failed"]
        eventually(lambda: admin.describe_acls(anything)[0] == [of_alice], "it is described")
        assert not is_open_to_kafka_python(broker, topic)
        (deleted,) = admin.delete_acls([anything])
        assert deleted[1] == [of_alice]
        eventually(lambda: is_open_to_kafka_python(broker, topic), "it is open again")


def test_entries_are_kept_when_a_broker_is_killed(tmp_path: Path, topic: str) -> None:
    properties = {"authorizer_class_name": STANDARD, "allow_everyone_if_no_acl_found": "true"}
    running = RunningBroker(tmp_path / "killed", **properties).start()
    try:
        admin = confluent.AdminClient({"bootstrap.servers": running.bootstrap})
        admin.create_topics([confluent.NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
        created = admin.create_acls([binding(topic, "User:alice")])
        for each in created.values():
            each.result(PATIENCE_S)
        del admin
        running.kill()
        running.start()
        assert refused_by_librdkafka(running, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    finally:
        running.kill()


@pytest.mark.java
@pytest.mark.spec("CLI-02")
@pytest.mark.timeout(180)
def test_apache_kafkas_tool(broker: RunningBroker, topic: str) -> None:
    def tool(name: str, *arguments: str, code: int = 0, stdin: str | None = None) -> str:
        return run(name, "--bootstrap-server", broker.bootstrap, *arguments, code=code, stdin=stdin)

    tool("topics", "--create", "--topic", topic)
    added = tool("acls", "--add", "--allow-principal", "User:alice", "--operation", "All", "--topic", topic)
    assert "principal=User:alice, host=*, operation=ALL, permissionType=ALLOW" in added
    tool("console-producer", "--topic", topic, stdin="lost\n")
    me = ("--allow-principal", "User:ANONYMOUS", "--topic", topic)
    tool("acls", "--add", "--producer", *me)
    tool("console-producer", "--topic", topic, stdin="kept\n")
    reading = ("--topic", topic, "--group", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")
    assert REFUSED in tool("console-consumer", *reading)
    tool("acls", "--add", "--consumer", *me, "--group", "test_apache", "--resource-pattern-type", "prefixed")
    assert tool("console-consumer", *reading).startswith("kept")
    listed = tool("acls", "--list", "--topic", topic, "--resource-pattern-type", "match")
    for line in (
        f"`ResourcePattern(resourceType=TOPIC, name={topic}, patternType=LITERAL)`",
        f"`ResourcePattern(resourceType=TOPIC, name={topic}, patternType=PREFIXED)`",
        "(principal=User:ANONYMOUS, host=*, operation=WRITE, permissionType=ALLOW)",
        "(principal=User:ANONYMOUS, host=*, operation=READ, permissionType=ALLOW)",
    ):
        assert line in listed
    tool("acls", "--remove", "--force", "--topic", topic, "--resource-pattern-type", "any")
    tool("acls", "--remove", "--force", "--group", "test_apache", "--resource-pattern-type", "prefixed")
    assert "resourceType" not in tool("acls", "--list", "--topic", topic)
    everybody = ("--deny-principal", "User:*", "--deny-host", "127.0.0.1")
    tool("acls", "--add", *everybody, "--operation", "Read", "--topic", "*")
    assert REFUSED in tool("console-consumer", *reading)
    assert "permissionType=DENY" in tool("acls", "--list", "--topic", "*")
    tool("acls", "--remove", "--force", "--topic", "*")


@pytest.mark.java
@pytest.mark.spec("CLI-02")
@pytest.mark.timeout(180)
def test_the_tool_as_the_page_has_it(broker: RunningBroker) -> None:
    told = []
    for command in to_type("tests/clients/test_acls.py::test_the_tool_as_the_page_has_it"):
        program, *words = command.replace("HOST:PORT", broker.bootstrap).split()
        assert program == "kafka-acls.sh"
        told.append(run("acls", *words))
    listed = told[-1]
    for entry in (
        "principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW",
        "principal=User:bob, host=*, operation=READ, permissionType=ALLOW",
        "name=orders, patternType=LITERAL",
        "name=orders, patternType=PREFIXED",
    ):
        assert entry in listed
    assert "resourceType=GROUP, name=billing-, patternType=PREFIXED" in told[1]
