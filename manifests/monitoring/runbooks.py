"""Makes the PrometheusRule and the page of runbooks in docs/ from rules.yaml."""

from __future__ import annotations

import textwrap
from typing import Any

import yaml

Rules = dict[str, Any]


def prometheus_rule(rules: Rules) -> str:
    """The rules for the Prometheus operator."""
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ballast", "labels": {"app.kubernetes.io/part-of": "ballast"}},
        "spec": rules,
    }
    return "# Written by generate.py from rules.yaml.\n" + yaml.safe_dump(resource, sort_keys=False, width=120)


def page(rules: Rules) -> str:
    """The page with all alerts: when each fires, and what to do then."""
    lines = ["# Runbooks", "", "What to do when an alert fires. Written by `manifests/monitoring/generate.py` from the"]
    lines += ["rules in `manifests/monitoring/rules.yaml`, whose annotations say the same.", ""]
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                lines += _section(rule)
    return "\n".join(lines)


def _section(rule: Rules) -> list[str]:
    condition = " ".join(str(rule["expr"]).split())
    advice = textwrap.wrap(rule["annotations"]["runbook"].strip(), 120, break_on_hyphens=False)
    when = f"{rule['labels']['severity'].capitalize()}, after {rule.get('for', '0m')} of"
    return [f"## {rule['alert']}", "", when, "", f"    {condition}", "", *advice, ""]
