"""Prints docs/configuration.md from the broker's own tables; tests/docs checks that the page is current."""

from ballast_broker.config import BROKER_PROPERTIES
from ballast_broker.topic_config import TOPIC_PROPERTIES


def _table(properties):
    yield "| name | type | default |\n| --- | --- | --- |"
    for each in properties:
        value = ",".join(map(str, each.default)) if isinstance(each.default, tuple) else each.default
        yield f"| `{each.name}` | {each.kind} | {'' if value is None else value} |"


def page() -> str:
    lines = ["# Configuration\n\nMade by docs/make_configuration.py.\n\n## Properties of a broker\n"]
    lines += [*_table(BROKER_PROPERTIES.values()), "\n## Configs of a topic\n"]
    lines += _table(entry.property for entry in TOPIC_PROPERTIES.values())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
