"""Prints docs/configuration.md from the broker's own tables; tests/docs checks that the page is current."""

from ballast_broker.config import BROKER_PROPERTIES
from ballast_broker.group_config import GROUP_PROPERTIES
from ballast_broker.topic_config import TOPIC_PROPERTIES


def _table(properties):
    yield "| name | type | default |\n| --- | --- | --- |"
    for each in properties:
        value = ",".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
        yield f"| `{each.name}` | {each.kind} | {'' if value is None else value} |"


HEAD = """\
# Configuration

Made by docs/make_configuration.py.

## A broker by itself

`./ballast broker one.properties` is a whole cluster of one with this file; stop it with Ctrl-C:

    node.id=1
    listeners=PLAINTEXT://localhost:9092
    log.dirs=/tmp/one/disk-0,/tmp/one/disk-1

`./ballast status --bootstrap localhost:9092` shows it. The `server.properties` that comes with Apache Kafka 4 works
as well; what has no effect here is told as it starts, and `--log-level info` tells more. Several brokers find each
other by `controller.quorum.voters` (`ID@HOST:PORT,...`), each with a `CONTROLLER://` listener and the same
`cluster.id`; or by `controller.quorum.bootstrap.servers`, where voters [come and
go](operations.md#controllers-that-vote).

## Properties of a broker
"""


def page() -> str:
    lines = [HEAD]
    lines += [*_table(BROKER_PROPERTIES.values()), "\n## Configs of a topic\n"]
    lines += [*_table(entry.property for entry in TOPIC_PROPERTIES.values()), "\n## Configs of a group\n"]
    lines += ["Of the consumer protocol: `kafka-configs.sh --entity-type groups`; the broker's own value by default.\n"]
    lines += _table(GROUP_PROPERTIES.values())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
