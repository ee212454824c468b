"""Prints docs/configuration.md from the broker's own tables; tests/docs checks that the page is current."""

import textwrap
from collections.abc import Iterable, Iterator

from ballast_broker.config.broker_properties import BROKER_PROPERTIES, WITHOUT_EFFECT
from ballast_broker.config.entries import DYNAMIC_BROKER_PROPERTIES
from ballast_broker.config.groups import GROUP_PROPERTIES
from ballast_broker.config.topics import TOPIC_PROPERTIES
from ballast_broker.config_types import Property


def _table(properties: Iterable[Property]) -> Iterator[str]:
    yield "| name | type | default |\n| --- | --- | --- |"
    for each in properties:
        value = ",".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
        yield f"| `{each.name}` | {each.kind} | {'' if value is None else value} |"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def _names(properties: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(properties))


HEAD = """\
# Configuration

Made by docs/make_configuration.py.

## A broker by itself

`./ballast broker one.properties` is a whole cluster of one with this file; stop it with Ctrl-C:

    node.id=1
    listeners=PLAINTEXT://localhost:9092
    log.dirs=/tmp/one/disk-0,/tmp/one/disk-1

`./ballast status --bootstrap localhost:9092` shows it. The `server.properties` that comes with Apache Kafka 4 works
as well, and `--log-level info` tells more. Several brokers find each
other by `controller.quorum.voters` (`ID@HOST:PORT,...`), each with a `CONTROLLER://` listener and the same
`cluster.id`; or by `controller.quorum.bootstrap.servers`, where voters [come and
go](operations.md#controllers-that-vote). What is secret
can stand [elsewhere](security.md#secrets-out-of-the-file).

## Properties of a broker
"""


def page() -> str:
    lines = [HEAD]
    lines += _table(each for each in BROKER_PROPERTIES.values() if each.name not in WITHOUT_EFFECT)
    nothing = f"Nothing follows from these here, and who sets one is told so: {_names(WITHOUT_EFFECT)}."
    running = (
        "These can be changed while brokers run, of one by `kafka-configs.sh --entity-type brokers --entity-name ID`, "
        f"of all by `--entity-default`: {_names(DYNAMIC_BROKER_PROPERTIES)}. "
        "`min.insync.replicas` can be changed only of all while the feature `eligible.leader.replicas.version` is 1, "
        "as in every new cluster. All others are what the file says at the start."
    )
    lines += ["", *_wrapped(running), "", *_wrapped(nothing), ""]
    lines += ["## Configs of a topic\n"]
    lines += [*_table(entry.property for entry in TOPIC_PROPERTIES.values()), "\n## Configs of a group\n"]
    lines += ["Of the consumer protocol: `kafka-configs.sh --entity-type groups`; the broker's own value by default.\n"]
    lines += _table(GROUP_PROPERTIES.values())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
