"""Rules and dashboards: generated, about metrics that exist, and every panel's query answers with data."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from tests.rebalance.real_prometheus import prometheus, wait_for

from ballast_rebalance.prometheus_http import Endpoint
from manifests.monitoring.generate import generated

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "manifests" / "monitoring"
ROW = re.compile(r"^\| (ballast_\w+) \| (gauge|counter|histogram) \| ([\w, ]*)\| (.+) \|$", re.MULTILINE)
# Of three hours, which no test waits for; what it answers then is tested by itself.
NEEDS_HISTORY = "Ballast / Directories: Fill in 24 hours at this rate"
NAME = re.compile(r"\b(?:ballast|process)_\w+\b")
OF_ANY_PROCESS = "process_start_time_seconds"


def documented() -> dict[str, tuple[str, list[str]]]:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    return {name: (kind, labels.replace(" ", "").split(",")) for name, kind, labels, _ in ROW.findall(text)}


def dashboards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((MONITORING / "dashboards").glob("*.json"))]


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    return [
        (f"{dashboard['title']}: {panel['title']}", target["expr"])
        for dashboard in dashboards()
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]


def as_prometheus_is_asked(query: str) -> str:
    """With everything chosen in the dashboard's variables; and with an interval as Grafana would choose one."""
    return re.sub(r"\$\w+", ".*", query.replace("$__rate_interval", "1m"))


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_generated_files_are_up_to_date() -> None:
    files = generated()
    for path, text in files.items():
        assert path.read_text(encoding="utf-8") == text, "run python -m manifests.monitoring.generate"
    assert {path.name for path in (MONITORING / "dashboards").iterdir()} == {
        path.name for path in files if path.parent.name == "dashboards"
    }


def test_every_dashboard_is_shipped() -> None:
    shipped = yaml.safe_load((MONITORING / "kustomization.yaml").read_text(encoding="utf-8"))
    files = {path for generator in shipped["configMapGenerator"] for path in generator["files"]}
    assert files == {f"dashboards/{path.name}" for path in (MONITORING / "dashboards").iterdir()}


def test_kubectl_apply_takes_all_dashboards_in_one_config_map() -> None:
    """It keeps what it applied, as JSON, in an annotation; annotations have 256 KiB."""
    data = {path.name: path.read_text(encoding="utf-8") for path in (MONITORING / "dashboards").iterdir()}
    assert len(json.dumps(data)) < 250 * 1024


def test_dashboards_are_what_grafana_takes() -> None:
    """Read by the model of Grafana 11 and written again, nothing is lost: no field is unknown or misplaced."""
    register_default_plugins()
    for dashboard in dashboards():
        model = Dashboard.from_json(dashboard)
        assert json.loads(json.dumps(model, cls=JSONEncoder)) == dashboard
        assert all(isinstance(panel, Panel | RowPanel) for panel in model.panels or ())
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_panels_say_what_they_show() -> None:
    """A unit and a sentence for each; a name for each of its lines, which tells those of one query apart."""
    for dashboard in dashboards():
        for panel in panels(dashboard):
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            legends = [target["legendFormat"] for target in panel["targets"]]
            assert all(legends), panel["title"]
            assert len(set(legends)) == len(legends), panel["title"]
            for target in panel["targets"]:
                grouped = re.search(r"^(?:topk\(\d+, )?(?:sum|count) by \(([^)]*)\)", target["expr"])
                for label in grouped[1].split(", ") if grouped else ():
                    assert f"{{{{{label}}}}}" in target["legendFormat"], panel["title"]


def test_queries_use_the_variables_that_their_dashboard_has() -> None:
    for dashboard in dashboards():
        known = {variable["name"] for variable in dashboard["templating"]["list"]}
        asked = json.dumps([panel["targets"] for panel in panels(dashboard)])
        used = set(re.findall(r"\$\{?(\w+)", asked)) - {"__rate_interval"}
        assert used == known, dashboard["title"]


def test_links_lead_to_dashboards_and_to_variables_that_they_have() -> None:
    by_uid = {dashboard["uid"]: dashboard for dashboard in dashboards()}
    followed = 0
    for dashboard in by_uid.values():
        for panel in panels(dashboard):
            for link in panel["fieldConfig"]["defaults"].get("links", ()):
                linked = re.match(r"/d/([\w-]+)\?", link["url"])
                assert linked is not None, link
                target = by_uid[linked[1]]
                asked = re.findall(r"var-(\w+)=|\$\{(\w+):queryparam\}", link["url"])
                known = {variable["name"] for variable in target["templating"]["list"]}
                assert {one or other for one, other in asked} <= known
                followed += 1
    assert followed > 5


@pytest.mark.spec("REB-03")
def test_only_documented_metrics_are_used() -> None:
    known = documented()
    assert len(known) > 40
    assert f"`{OF_ANY_PROCESS}`" in (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    texts = [query for _, query in queries()] + [str(rule["expr"]) for rule in rules()]
    for text in texts:
        for name in NAME.findall(text):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            listed = name in known or name == OF_ANY_PROCESS or known.get(base, ("", []))[0] == "histogram"
            assert listed, f"{name} is not in docs/metrics.md"


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    tested = (MONITORING / "rules_test.yaml").read_text(encoding="utf-8")
    for rule in rules():
        if "alert" in rule:
            assert len(rule["annotations"]["runbook"]) > 40
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["alert"] in tested, f"{rule['alert']} has no promtool test"


def test_options_of_commands_are_whole_in_the_runbooks() -> None:
    text = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    assert not re.findall(r"\S+-$", text, re.MULTILINE)


def test_panels_do_not_overlap() -> None:
    for dashboard in dashboards():
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= 24
            assert not taken & cells
            taken |= cells


def test_the_jobs_own_metrics_are_documented_in_the_words_of_its_page() -> None:
    from ballast_rebalance.outcomes import OutcomeMetrics

    metrics = OutcomeMetrics(300.0)
    metrics.record("Balanced", None, 1.0)
    told = {}
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        told[name] = (family.type, family.documentation)
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").replace("`", "")
    rows = [row for row in ROW.findall(text) if row[0].startswith("ballast_rebalance_")]
    assert told == {name: (kind, meaning) for name, kind, _, meaning in rows}


@pytest.mark.prometheus
@pytest.mark.timeout(240)  # promtool needs more than twenty seconds of a whole core
def test_the_rules_do_what_their_tests_say() -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None
    for arguments in (("test", "rules", "rules_test.yaml"), ("check", "config", "scrape-config.yaml")):
        found = subprocess.run([promtool, *arguments], cwd=MONITORING, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr


def sample_values() -> dict[str, str]:
    return {"api": "Produce", "partition": "0", "broker": "1", "log_dir": "/a", "kind": "KafkaTopic"}


def expose_everything(registry: CollectorRegistry) -> list[Histogram]:
    """One series of each documented metric, as a cluster has them; two clusters of one name in two namespaces do.

    Its directory is not cordoned: that would have no part in the spread. Histograms are for the caller to go on with:
    of nothing there are no quantiles.
    """
    histograms = []
    for name, (kind, labels) in documented().items():
        named = [label for label in labels if label]
        values = [sample_values().get(label, label) for label in named]
        named = [*named, "namespace"]
        metric = {"gauge": Gauge, "counter": Counter, "histogram": Histogram}[kind](name, "x", named, registry=registry)
        for namespace in ("kafka", "staging"):
            child = metric.labels(*values, namespace)
            if isinstance(child, Histogram):
                histograms.append(child)
            else:
                child.inc(0 if name == "ballast_log_dir_cordoned" else 1)
    return histograms


@pytest.mark.prometheus
@pytest.mark.timeout(120)
def test_every_panel_answers_with_data(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    histograms = expose_everything(registry)

    def scraped() -> float:
        for histogram in histograms:
            histogram.observe(0.01)
        return endpoint.scalar("max(count_over_time(ballast_broker_info[1m]))") or 0

    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with prometheus(tmp_path, [server.server_port]) as endpoint:
            wait_for(lambda: scraped() >= 3)
            silent = [title for title, query in queries() if not answers(endpoint, query) and title != NEEDS_HISTORY]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert silent == []


def answers(endpoint: Endpoint, query: str) -> bool:
    return bool(endpoint.query(as_prometheus_is_asked(query)))


@pytest.mark.prometheus
def test_the_dashboard_counts_the_directories_that_the_alert_is_about(tmp_path: Path) -> None:
    """Not a new one, whose first minutes do not go on; one whose broker was made anew, under another address."""
    alert = next(rule["expr"] for rule in rules() if rule.get("alert") == "BallastLogDirFullWithin24h")
    asked = {title: as_prometheus_is_asked(query) for title, query in queries()}
    counted, drawn_on = asked["Ballast / Directories: Full within a day"], asked[NEEDS_HISTORY]
    used = {
        'broker="1",log_dir="/steady",instance="before"': "100000+1000x400 stale _x100",
        'broker="1",log_dir="/steady",instance="after"': "_x401 501000+1000x100",
        'broker="2",log_dir="/quiet"': "900000x500",
        'broker="2",log_dir="/new"': "_x400 0+30000x10 300000x90",
    }
    series = [
        {"series": f'ballast_log_dir_{what}_bytes{{namespace="n",job="k",{labels}}}', "values": values}
        for labels, held in used.items()
        for what, values in (("used", held), ("total", re.sub(r"[\d+]+x", "1000000+0x", held)))
    ]
    samples = [
        # (at, how many will be full, which are drawn on)
        ("2h", 0, []),
        ("6h50m", 1, ["/quiet", "/steady"]),
        ("7h", 1, ["/quiet", "/steady"]),
    ]
    tests = []
    for at, full, drawn in samples:
        tests.append({"expr": counted, "eval_time": at, "exp_samples": [{"labels": "{}", "value": full}]})
        alerts = [{"labels": '{log_dir="/steady"}', "value": 1}] if full else []
        tests.append({"expr": f"count by (log_dir) ({alert})", "eval_time": at, "exp_samples": alerts})
        lines = [{"labels": f'{{log_dir="{path}"}}', "value": 1} for path in drawn]
        tests.append({"expr": f"count by (log_dir) ({drawn_on})", "eval_time": at, "exp_samples": lines})
    require_answers(tmp_path, {"interval": "1m", "input_series": series, "promql_expr_test": tests})


def require_answer(tmp_path: Path, query: str, told: dict[str, int], expected: dict[str, int]) -> None:
    """The query's answer, by labels, where each of these series has had one value for a while."""
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{value}x3"} for name, value in told.items()],
        "promql_expr_test": [
            {
                "expr": as_prometheus_is_asked(query),
                "eval_time": "2m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
            }
        ],
    }
    require_answers(tmp_path, case)


@pytest.mark.prometheus
def test_the_lag_of_a_group_needs_no_replica_where_its_coordinator_is(tmp_path: Path) -> None:
    """The coordinator, broker 1, tells the lag of what it has itself; of topic `far` it has nothing."""
    query = next(query for title, query in queries() if title.endswith("Lag of groups"))
    told = {
        'ballast_replica_log_end_offset{job="k",topic="far",partition="0",broker="2"}': 100,
        'ballast_replica_log_end_offset{job="k",topic="far",partition="0",broker="3"}': 99,
        'ballast_group_committed_offset{job="k",group="g",topic="far",partition="0",broker="1"}': 60,
        'ballast_replica_log_end_offset{job="k",topic="near",partition="0",broker="1"}': 10,
        'ballast_group_committed_offset{job="k",group="g",topic="near",partition="0",broker="1"}': 10,
        'ballast_group_lag{job="k",group="g",topic="near",partition="0",broker="1"}': 0,
        # Of brokers that leave series of partitions out.
        'ballast_group_committed_offset{job="k",group="h",topic="small",partition="0",broker="1"}': 1,
        'ballast_group_lag{job="k",group="h",topic="small",partition="0",broker="1"}': 7,
    }
    expected = {'{group="g",topic="far"}': 40, '{group="g",topic="near"}': 0, '{group="h",topic="small"}': 7}
    require_answer(tmp_path, query, told, expected)


@pytest.mark.prometheus
def test_copies_are_not_others_and_others_are_told_of_where_no_replica_is(tmp_path: Path) -> None:
    query = next(query for title, query in queries() if title.endswith("Used by others"))
    told = {
        'ballast_log_dir_used_bytes{job="k",broker="1",log_dir="/from"}': 110,
        'ballast_log_dir_used_bytes{job="k",broker="1",log_dir="/to"}': 45,
        'ballast_log_dir_used_bytes{job="k",broker="1",log_dir="/empty"}': 7,
        'ballast_replica_size_bytes{job="k",topic="t",partition="0",broker="1",log_dir="/from"}': 100,
        'ballast_replica_future_size_bytes{job="k",topic="t",partition="0",broker="1",log_dir="/to"}': 40,
    }
    expected = {f'{{broker="1",log_dir="{path}"}}': value for path, value in (("/from", 10), ("/to", 5), ("/empty", 7))}
    require_answer(tmp_path, query, told, expected)


@pytest.mark.prometheus
def test_a_quantile_of_nothing_is_not_drawn(tmp_path: Path) -> None:
    """Of the kinds of requests a broker has met once most are not asked for now."""
    asked = [as_prometheus_is_asked(query) for title, query in queries() if "Latency" in title]
    assert len(asked) == 2
    told = {
        f'api="{api}",le="{le}"': count for api, count in (("Fetch", "0+6x5"), ("Vote", "6x5")) for le in (1, "+Inf")
    }
    case = {
        "interval": "15s",
        "input_series": [
            {"series": f'ballast_request_duration_seconds_bucket{{job="k",broker="1",{labels}}}', "values": values}
            for labels, values in told.items()
        ],
        "promql_expr_test": [
            {
                "expr": f"count by (api) ({query})",
                "eval_time": "1m",
                "exp_samples": [{"labels": '{api="Fetch"}', "value": 1}],
            }
            for query in asked
        ],
    }
    require_answers(tmp_path, case)


def require_answers(folder: Path, case: dict[str, Any]) -> None:
    """That Prometheus answers as promtool's case says."""
    (folder / "case.yaml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}))
    promtool = shutil.which("promtool")
    assert promtool is not None
    done = subprocess.run([promtool, "test", "rules", str(folder / "case.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
