"""Finds every command that a documentation page tells users to type, and says which test types it.

A command is a line of a block, or a code span, that begins with a program. Tests take the commands that they type from
here, so that exactly what is on a page is run, in the page's order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OF_KAFKA = r"(?:kafka|connect)-[a-z-]+(?:\.sh)?"
PROGRAM = rf"(?:(?:\./)?ballast|kubectl|export|docker|buildah|ctr|podman|spark-submit|python|{OF_KAFKA})"
BLOCK = re.compile(rf"^(?: {{4}})?({PROGRAM} (?:.*\\\n)*.*)$", re.MULTILINE)
SPAN = re.compile(rf"(?<!`)`({PROGRAM}\s[^`]+)`")

KUBERNETES = "tests/docs/test_typed.py::"
# Page, how the command begins, the test that types it.
TYPED = (
    ("README.md", r"export|kubectl|\./ballast (?:up|get|status)", f"{KUBERNETES}test_readme"),
    ("README.md", r"\./ballast broker", "tests/docs/test_typed_at_brokers.py::test_a_broker_in_the_foreground"),
    ("docs/configuration.md", r"\./ballast", "tests/docs/test_typed_at_brokers.py::test_a_broker_by_itself"),
    ("README.md", r"\./ballast demo", "tests/rebalance/test_watched_cluster.py::test_the_demo_goes_through_prometheus"),
    ("docs/migrate.md", r"\./ballast", "tests/docs/test_typed_at_brokers.py::test_migrate_by_hand"),
    ("docs/migrate.md", "kubectl", f"{KUBERNETES}test_migrate_to_resources"),
    (
        "docs/migrate.md",
        "connect-mirror-maker|kafka-",
        "tests/clients/test_mirrormaker.py::test_topics_and_groups_go_over_as_the_page_says",
    ),
    ("docs/kubernetes.md", "kubectl", f"{KUBERNETES}test_kubernetes"),
    ("docs/rebalance.md", r"\./ballast rebalance --", "tests/rebalance/test_watched_cluster.py::test_the_pages_typed"),
    ("docs/rebalance.md", "kubectl", f"{KUBERNETES}test_rebalance"),
    ("docs/runbooks.md", r"\./ballast rebalance", "tests/rebalance/test_watched_cluster.py::test_the_pages_typed"),
    ("docs/runbooks.md", "kubectl", f"{KUBERNETES}test_runbooks"),
    ("docs/reference/reasons.md", r"kubectl|\./ballast", f"{KUBERNETES}test_reasons"),
    ("docs/operations.md", r"kubectl|\./ballast status", f"{KUBERNETES}test_operations"),
    (
        "docs/runbooks.md",
        "kafka-(topics|leader-election)",
        "tests/clients/test_java_tools.py::test_leaderless_partitions_as_the_page_says",
    ),
    (
        "docs/runbooks.md",
        "kafka-cluster",
        "tests/clients/test_java_tools.py::test_a_broker_is_forgotten_as_the_page_says",
    ),
    ("docs/security.md", "kafka-acls", "tests/clients/test_acls.py::test_the_tool_as_the_page_has_it"),
    ("docs/security.md", r"\./ballast status --", "tests/clients/test_secured_page.py::test_the_page_typed"),
    (
        "docs/security.md",
        "kafka-delegation-tokens",
        "tests/clients/test_delegation_tokens_java.py::test_the_tool_as_the_page_has_it",
    ),
    ("docs/security.md", "kafka-configs", "tests/clients/test_secured_page.py::test_the_page_typed_at_kafkas_tools"),
    (
        "docs/configuration.md",
        "kafka-configs",
        "tests/clients/test_java_consumer_protocol.py::test_a_group_is_configured",
    ),
    ("docs/operations.md", "kafka-configs", "tests/clients/test_java_tools.py::test_quotas_as_the_page_sets_them"),
    (
        "docs/operations.md",
        r"kafka-features.* NAME=LEVEL$",
        "tests/clients/test_java_tools.py::test_a_feature_as_the_page_enables_it",
    ),
    (
        "docs/operations.md",
        r"kafka-(metadata-quorum|features)\.sh",
        "tests/clients/test_changing_voters.py::test_voters_are_changed_as_the_page_says",
    ),
)
# Commands that no test types, and what is done instead. Those of `./ballast` are checked by their own parsers.
NOT_TYPED = (
    (r"\./ballast \w+(?: \.\.\.)?$", "only named, or long: the help of each is asked for (tests/frame)"),
    (r"\./ballast test --spec-report$", "it is what runs these tests"),
    (r"\./ballast bench ", "minutes beside Apache Kafka"),
    (r"\./ballast (?:chaos|soak) ", "minutes to hours of faults; their parts are run by tests/chaos and tests/moves"),
    (r"\./ballast e2e ", "minutes on a Kubernetes: CI's stage kubernetes runs the same scenarios"),
    (r"\./ballast image ", "needs root and debootstrap, or Docker: CI's stage kubernetes makes both images so"),
    (r"docker|ctr|podman|buildah", "programs of others, which are not here"),
    (r"(?:ballast )?spark-submit ", "parsed by tests/rebalance/test_shipping.py, run in pods by tests/kubernetes"),
)
# What is typed differently from the page, and why.
CHANGED = (
    (r"(.* -k manifests/overlays/cluster-wide)$", r"\1 --dry-run=server", "its operator would act beside that of up"),
    (r"(kubectl drain .*)$", r"\1 --dry-run=server", "there is only this one node"),
    (r"\bNODE\b|{node}", "local", "the reader's"),
    (r"\bNAMESPACE\b", "default", "the reader's"),
    (r"{cluster}|{set}|(?<=--cluster )NAME", "demo", "the reader's"),
    (r"{claim}", "disk-0-demo-0", "the reader's"),
    (r"{pod}", "demo-0", "the reader's"),
    (r"(reassignment|bkr) (?:NAME|{name})", r"\1 level", "the reader's"),
)


@dataclass(frozen=True)
class Command:
    page: str
    text: str

    @property
    def typed_by(self) -> str | None:
        found = (test for page, begins, test in TYPED if page == self.page and re.match(begins, self.text))
        return next(found, None)

    @property
    def left_out(self) -> str | None:
        """Why it is not typed."""
        return next((why for pattern, why in NOT_TYPED if re.match(pattern, self.text)), None)


def pages() -> list[str]:
    """All pages but docs/spec, which specifies behaviour and has no commands to type."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/reference").glob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found]


def commands(page: str) -> Iterator[Command]:
    """The page's commands in order, without comments, each on one line."""
    text = (ROOT / page).read_text("utf-8")
    for found in sorted([*BLOCK.finditer(text), *SPAN.finditer(text)], key=lambda one: one.start()):
        yield Command(page, re.sub(r"\s*\\\n\s*|\s+", " ", found[1].split("  #")[0]).strip())


def to_type(test: str) -> list[str]:
    """The commands that this test types, as it types them."""
    texts = [command.text for page in pages() for command in commands(page) if command.typed_by == test]
    for pattern, instead, _ in CHANGED:
        texts = [re.sub(pattern, instead, text) for text in texts]
    return texts


def block(page: str, begins: str) -> str:
    """The page's indented block that begins with this text."""
    text = (ROOT / page).read_text("utf-8")
    found = re.search(rf"^ {{4}}{re.escape(begins)}(?:.*\n(?: {{4}}.*\n|\n(?= {{4}}))*)", text, re.MULTILINE)
    assert found is not None, f"{page} has no block that begins with {begins!r}"
    return re.sub(r"^ {4}", "", found[0], flags=re.MULTILINE)
