"""Generates the dashboards, the PrometheusRule and docs/runbooks.md.

From the root of the repository, with what requirements/dev.lock installs:

    python -m manifests.monitoring.generate           rewrites the files
    python -m manifests.monitoring.generate --check   fails when they are out of date

Those who only use the files need none of it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from manifests.monitoring import runbooks
from manifests.monitoring.grafana import dashboards

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def generated() -> dict[Path, str]:
    """Every generated file and its content."""
    rules = yaml.safe_load((HERE / "rules.yaml").read_text(encoding="utf-8"))
    return {HERE / "dashboards" / f"{name}.json": text for name, text in dashboards().items()} | {
        HERE / "prometheusrule.yaml": runbooks.prometheus_rule(rules),
        ROOT / "docs" / "runbooks.md": runbooks.page(rules),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Write dashboards, PrometheusRule and runbooks anew.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    check = parser.parse_args(arguments).check
    stale = [
        (path, text)
        for path, text in generated().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if not check:
            path.write_text(text, encoding="utf-8")
        print(f"{'out of date' if check else 'wrote'}: {path.relative_to(ROOT)}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
