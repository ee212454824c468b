"""Examples shown by each command's `--help`; a test parses each of them, so they are valid."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": ("up", "up --brokers 5 --volumes 2"),
    "demo": ("demo --quick",),
    "status": ("status --watch", "status --bootstrap kafka-0:9092 --command-config client.properties"),
    "broker": ("broker one.properties --override log.dirs=/data/a,/data/b",),
    "operator": ("operator --namespace kafka --probe-port 8080",),
    "reassign": (
        "reassign generate --bootstrap kafka-0:9092 --json plan.json",
        "reassign execute --bootstrap kafka-0:9092 --json plan.json --throttle 50Mi --wait",
    ),
    "rebalance": (
        "rebalance --bootstrap kafka-0:9092 --report report.html",
        "rebalance --prometheus http://prometheus:9090 --cluster demo --apply",
    ),
    "bench": ("bench broker --quick",),
    "chaos": ("chaos --minutes 10 --seed 7",),
    "soak": ("soak kill --times 20",),
    "e2e": ("e2e --provider embedded git",),
    "test": ("test tests/broker -k recovery",),
    "image": ("image --name registry/ballast:0.1.0",),
    "get": ("get kafkatopics", "get ballast -A", "get bkr level -o jsonpath='{.status.plan.hash}'"),
    "apply": ("apply -f manifests/examples/topic.yaml",),
    "patch": ('patch bkr level --type merge -p \'{"spec": {"approvedPlan": "HASH"}}\'',),
    "delete": ("delete kafkatopic orders", "delete -f manifests/examples/topic.yaml"),
    "describe": ("describe kafkacluster demo",),
    "wait": (
        "wait kafkatopic/orders --for condition=Ready --timeout 60s",
        "wait bkr/level --for jsonpath='{.status.phase}'=AwaitingApproval",
    ),
}


def told(command: str) -> str:
    """The examples as the epilog of a command's help."""
    lines = EXAMPLES[command]
    return "\n".join(["example:" if len(lines) == 1 else "examples:", *(f"  ./ballast {line}" for line in lines)])
