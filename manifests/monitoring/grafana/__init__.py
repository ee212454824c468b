"""Builds the Grafana dashboards: one module each, with common style (`house.py`) and shared queries (`queries.py`)."""

from __future__ import annotations

import json

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from manifests.monitoring.grafana import broker, cluster, directories, operator, reassignments, rebalance, topics

PAGES = {
    "cluster": cluster,
    "broker": broker,
    "directories": directories,
    "topics": topics,
    "reassignments": reassignments,
    "operator": operator,
    "rebalance": rebalance,
}


def dashboards() -> dict[str, str]:
    """Each dashboard's name and its JSON, as Grafana 11 imports it."""
    return {name: json.dumps(page.build().build(), cls=JSONEncoder, indent=1) + "\n" for name, page in PAGES.items()}
