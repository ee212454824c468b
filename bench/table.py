"""The table of a bench that runs workloads against one server of each kind: results as ratios, beside their goals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.clients import Sample
from bench.pairs import NARROW, Ratio, ratio_of
from bench.servers import Server

HEAD = f"{'workload':38} {'Ballast':>7} {'Kafka':>7} {'':5} {'rate':>17} {'cpu':>17} {'p99':>17}  goal"
Run = Callable[[Server], Sample]


@dataclass(frozen=True)
class Workload:
    """The goals are ratios of Ballast to Kafka: `rate` at least, `cpu` and `p99` at most."""

    name: str
    unit: str
    rate: float
    cpu: float
    p99: float | None = None
    quick: bool = False
    run: Run = field(repr=False, default=lambda server: Sample(0, 0))
    limit: Callable[[], Sample] | None = field(repr=False, default=None)  # what no broker on this machine can beat


@dataclass
class Row:
    workload: Workload
    ours: list[Sample] = field(default_factory=list)
    theirs: list[Sample] = field(default_factory=list)
    limits: list[Sample] = field(default_factory=list)

    def ratio(self, value: Callable[[Sample], float]) -> Ratio | None:
        pairs = [(value(a), value(b)) for a, b in zip(self.ours, self.theirs, strict=True)]
        ratios = [a / b for a, b in pairs if b > 0]
        return ratio_of(ratios) if ratios else None

    @property
    def narrow(self) -> bool:
        ratio = self.ratio(lambda sample: sample.rate)
        return ratio is not None and ratio.pairs >= 7 and ratio.width <= NARROW

    def below(self) -> list[str]:
        rate, cpu, p99 = self._ratios()
        goals = self.workload
        return [
            *(["rate"] if rate is not None and rate.median < goals.rate else []),
            *(["cpu"] if cpu is not None and cpu.median > goals.cpu else []),
            *(["p99"] if goals.p99 is not None and p99 is not None and p99.median > goals.p99 else []),
        ]

    def _ratios(self) -> tuple[Ratio | None, Ratio | None, Ratio | None]:
        return self.ratio(lambda s: s.rate), self.ratio(lambda s: s.cpu), self.ratio(lambda s: s.p99_ms)

    def text(self) -> str:
        rate, cpu, p99 = (_text(ratio) for ratio in self._ratios())
        goals = f">= {self.workload.rate:g}, cpu <= {self.workload.cpu:g}"
        below = self.below()
        verdict = "" if not below else "  BELOW: " + ", ".join(below)
        own = ", ".join(f"{sample.rate:.0f}" for sample in self.ours[-1:])
        other = ", ".join(f"{sample.rate:.0f}" for sample in self.theirs[-1:])
        of_limit = self.of_limit()
        limit = (
            "" if of_limit is None else "; of a server that only answers: rate {}, cpu {}".format(*map(_text, of_limit))
        )
        return (
            f"{self.workload.name:38} {own:>7} {other:>7} {self.workload.unit:5} {rate:>17} {cpu:>17} {p99:>17} "
            f" {goals}{verdict}{limit}"
        )

    def of_limit(self) -> tuple[Ratio, Ratio] | None:
        pairs = list(zip(self.ours, self.limits, strict=False))
        if not pairs:
            return None
        return ratio_of([a.rate / b.rate for a, b in pairs]), ratio_of([a.cpu / b.cpu for a, b in pairs])

    def as_json(self) -> dict[str, object]:
        rate, cpu, p99 = self._ratios()
        limit_rate, limit_cpu = self.of_limit() or (None, None)
        named = {"rate": rate, "cpu": cpu, "p99": p99, "rate_of_limit": limit_rate, "cpu_of_limit": limit_cpu}
        found = {key: [value.median, value.low, value.high] for key, value in named.items() if value is not None}
        return {**found, "pairs": len(self.ours), "below": self.below()}


def _text(ratio: Ratio | None) -> str:
    return "-" if ratio is None else ratio.text() if ratio.pairs > 1 else f"{ratio.median:.2f}"
