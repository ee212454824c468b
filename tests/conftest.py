"""Sets up pytest for all tests.

- `async def` tests run on an event loop of their own, made like a broker's and closed before the next test, within the
  test's time limit. A task whose error nobody retrieves, or an exception in a callback, fails the test that caused it.
- Blocking calls on that loop from our packages fail the test (see BLOCKING_ALLOWED for what the design does inline).
- `@pytest.mark.spec("LOG-10", ...)` names the behaviours of docs/spec that a test shows; unknown ids are an error.
  `--spec-report` lists, per file of docs/spec, what was shown, what has tests that did not run, and what is missing.
- A kafka-python client that is still open after the last test of a file fails that test.
- Tests with a marker of NEEDS_REAL run only when `-m` names it.
- Tests with the marker `interpreted` are skipped where the broker is compiled (`ballast test --compiled`).
- With `--numprocesses`, the tests of one file run one after the other in one process, and so do those of all files that
  contain the same string of SHARED. Files with the longest time limits come first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.util
import inspect
import math
import os
import re
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from ballast_broker.net.event_loop import EventLoop
from ballast_broker.storage import log as storage_log

SPEC = Path(__file__).resolve().parents[1] / "docs" / "spec"
# A cluster with its operator, a Spark session, and the real Kubernetes: one per process (of the last, one per machine),
# as each takes longer to start than most tests take.
SHARED = ("ballast_world", "spark: SparkSession", "from e2e.kubernetes.world import")
# The threads of kafka-python, and how long one may take to end after it was told to.
CLIENT_THREAD = re.compile(r"kafka-io-|.*-network-thread$")
CLIENT_ENDS_WITHIN_S = 10.0
NEEDS_REAL = ("disks", "java", "go", "node", "prometheus", "chromium", "kubernetes", "simulation")
IS_COMPILED = not storage_log.__file__.endswith(".py")
OWN_PACKAGES = (
    "ballast_wire", "ballast_broker", "ballast_operator", "ballast_local", "ballast_rebalance", "ballast_planner",
)  # fmt: skip
# Page-cache writes, sendfile and small file operations happen on the broker's loop by design (LOG-32). A lock that
# another thread holds for a microsecond does not block the loop, and whether a test meets one is chance.
BLOCKING_ALLOWED = ("os.", "io.", "threading.")
# The loop times out before pytest-timeout does, so that it can still be closed and the failure be reported.
MARGIN_SHARE = 0.1
MARGIN_SECONDS = 1.0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ballast")
    group.addoption("--compiled", action="store_true", help="fail where the broker is not compiled (./ballast test)")
    group.addoption("--spec-report", action="store_true", help="list the behaviours of docs/spec that tests show")


# How long an example takes depends on the machine, not on the code; CI tries the same examples each time.
settings.register_profile(
    "ballast", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ballast")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("compiled") and not IS_COMPILED:
        raise pytest.UsageError(
            f"--compiled, but {storage_log.__file__} is not: ./ballast test --compiled compiles it first"
        )
    gc.disable()  # until all tests are collected
    config.pluginmanager.register(AlarmInPhases(), "ballast-alarm")
    config.pluginmanager.register(ClientThreads(), "ballast-client-threads")
    config.pluginmanager.register(SpecReport(read_spec(SPEC), read_later(SPEC)), "ballast-spec-report")
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # inherited from a shell's `&`; child processes would inherit it as well
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if (
        signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    ):  # inherited from `nohup`: child processes get the default instead
        signal.signal(signal.SIGHUP, lambda *_: None)


# ---- which tests run


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = set(re.findall(r"\w+", config.option.markexpr))
    unwanted = [name for name in NEEDS_REAL if name not in wanted]
    left_out = {item for item in items if any(item.get_closest_marker(name) for name in unwanted)}
    for item in left_out:
        for name in NEEDS_REAL:
            if item.get_closest_marker(name) and not says_where_ci_looks(item.path, f"mark.{name}"):
                raise pytest.UsageError(f"{item.nodeid}: .ci/run reads files that say mark.{name}, which this does not")
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    if IS_COMPILED:
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(pytest.mark.skip(reason="a stand-in does not pass for what is compiled"))
    if hasattr(config, "workerinput"):
        longest_first(items)


def pytest_collection_finish() -> None:
    """Exclude what was imported from garbage collections, some of which tests themselves ask for."""
    gc.freeze()
    gc.enable()


@functools.cache
def says_where_ci_looks(path: Path, text: str) -> bool:
    """Whether `text` is in the test's file, or in one beside it that is no test, for which .ci/run takes the folder."""
    beside = (each for each in path.parent.glob("*.py") if not each.name.startswith("test_"))
    return any(text in each.read_text(encoding="utf-8") for each in (path, *beside))


# ---- which process runs them, and when


def longest_first(items: list[pytest.Item]) -> None:
    """Sort files by their longest time limit, then by their number of tests: a long file at the end would keep one
    process busy after all others are done."""
    limits: dict[Path, list[float]] = defaultdict(list)
    for item in items:
        limits[item.path].append(time_limit(item) or math.inf)
    items.sort(key=lambda item: (-max(limits[item.path]), -len(limits[item.path]), item.path))


class ByFileOrShared(LoadFileScheduling):
    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # `longest_first` has sorted them
        self._root = config.rootpath
        self._units: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        if file not in self._units:
            text = (self._root / file).read_text(encoding="utf-8")
            self._units[file] = next((name for name in SHARED if name in text), file)
        return self._units[file]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileOrShared:
    return ByFileOrShared(config, log)


# ---- async tests


def time_limit(item: pytest.Item) -> float | None:
    """The test's time limit in seconds: its own marker, else --timeout, else the project's setting."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        value = marker.args[0] if marker.args else marker.kwargs.get("timeout")
    else:
        value = item.config.getoption("timeout", None)
        if value is None:
            value = item.config.getini("timeout")
    return float(value) if value else None


def loop_margin(limit: float) -> float:
    return max(limit * MARGIN_SHARE, min(MARGIN_SECONDS, limit / 2))


def run_on_loop(test: Callable[..., Awaitable[None]], limit: float | None, arguments: dict[str, Any]) -> None:
    """Run the test on a new loop and close the loop; raise what failed on the loop unseen by the test."""
    unseen: list[dict[str, Any]] = []

    async def limited() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        try:
            async with asyncio.timeout(None if limit is None else limit - loop_margin(limit)) as deadline:
                await test(**arguments)
        except TimeoutError:
            if deadline.expired():
                pytest.fail(f"the test took longer than {limit:g} s")
            raise

    with asyncio.Runner(loop_factory=EventLoop) as runner, blocking_calls_fail():
        runner.run(limited())
    if unseen:
        failure = unseen[0].get("exception")
        raise AssertionError(f"went wrong on the loop, unseen by the test: {unseen}") from failure


@functools.cache
def blocking_detector() -> BlockBuster:
    packages = [package for package in OWN_PACKAGES if importlib.util.find_spec(package)]
    detector = BlockBuster(scanned_modules=packages)
    for name in [name for name in detector.functions if name.startswith(BLOCKING_ALLOWED)]:
        del detector.functions[name]
    return detector


@contextlib.contextmanager
def blocking_calls_fail() -> Iterator[None]:
    detector = blocking_detector()
    detector.activate()
    try:
        yield
    finally:
        detector.deactivate()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    test = pyfuncitem.obj
    limit = time_limit(pyfuncitem)
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", None)
    if inner is not None and inspect.iscoroutinefunction(inner):
        test.hypothesis.inner_test = functools.wraps(inner)(lambda **given: run_on_loop(inner, limit, given))
    elif inspect.iscoroutinefunction(test):
        pyfuncitem.obj = functools.wraps(test)(lambda **fixtures: run_on_loop(test, limit, fixtures))
    return (yield)


# ---- time limits


class AlarmInPhases:
    """An alarm of pytest-timeout fails the setup, call or teardown of its test. One that rings between these phases,
    such as while a report is written, would end pytest: it is delayed until the next phase, if there is one."""

    def __init__(self) -> None:
        self._fail: Callable[[int, FrameType | None], Any] | None = None
        self._in_phase = False
        self._rang = False

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self) -> Iterator[Any]:
        """Runs last, after pytest-timeout has set the alarm."""
        found = signal.getsignal(signal.SIGALRM)
        self._fail, self._rang = found if callable(found) else None, False
        if self._fail is not None:
            signal.signal(signal.SIGALRM, self._ring)
        return (yield)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self._rang = not self._in_phase
        if self._in_phase and self._fail is not None:
            self._fail(number, frame)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[Any]:
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[Any]:
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[Any]:
        return (yield from self._phase())

    def _phase(self) -> Generator[None, Any, Any]:
        self._in_phase = True
        try:
            if self._rang:
                self._ring(signal.SIGALRM, None)
            return (yield)
        finally:
            self._in_phase = False


# ---- clients that tests leave


class ClientThreads:
    """Fails a test file that leaves clients open, once: such a client looks for its brokers as long as the process
    lives, and draws from the global `random`, which disturbs the property tests that follow."""

    def __init__(self) -> None:
        self._seen_after: dict[threading.Thread, str] = {}
        self._told: set[threading.Thread] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """The outermost wrapper, so that the fixtures of the file are torn down when it looks."""
        yield
        for thread in threading.enumerate():
            if CLIENT_THREAD.match(thread.name) and thread not in self._told:
                self._seen_after.setdefault(thread, item.nodeid)
        if nextitem is None or nextitem.path != item.path:
            seen_after, self._seen_after = self._seen_after, {}
            until = time.monotonic() + CLIENT_ENDS_WITHIN_S
            for thread in seen_after:
                thread.join(max(0.0, until - time.monotonic()))
            left = [thread for thread in seen_after if thread.is_alive()]
            self._told.update(left)
            if left:
                told = (f"{thread.name}, first seen after {seen_after[thread]}" for thread in left)
                pytest.fail(f"clients that were not closed: {'; '.join(told)}", pytrace=False)


# ---- behaviours shown


def read_spec(folder: Path) -> dict[str, list[str]]:
    """The ids in each file, in order."""
    found = {}
    for path in sorted(folder.glob("*.md")):
        ids = re.findall(r"^- ([A-Z]{3}-\d+)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
        if ids:
            found[path.name] = ids
    return found


def read_later(folder: Path) -> set[str]:
    """The ids of behaviours that come in a later release."""
    later = re.compile(r"^- ([A-Z]{3}-\d+) \(later\)", re.MULTILINE)
    return {spec_id for path in folder.glob("*.md") for spec_id in later.findall(path.read_text(encoding="utf-8"))}


class SpecReport:
    """Collects which ids have tests and which tests passed."""

    def __init__(self, ids_by_file: dict[str, list[str]], later: set[str]) -> None:
        self._ids_by_file = ids_by_file
        self._later = later
        self._known = {spec_id for ids in ids_by_file.values() for spec_id in ids}
        self._ids_by_test: dict[str, tuple[str, ...]] = {}
        self._outcomes: dict[str, set[str]] = defaultdict(set)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            ids = tuple(spec_id for marker in item.iter_markers("spec") for spec_id in marker.args)
            unknown = [spec_id for spec_id in ids if spec_id not in self._known]
            if unknown:
                raise pytest.UsageError(f"{item.nodeid}: docs/spec has no {', '.join(map(str, unknown))}")
            if ids:
                self._ids_by_test[item.nodeid] = ids

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[report.nodeid].add(report.outcome)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if not config.getoption("--spec-report"):
            return
        states = self._states()
        terminalreporter.section("behaviours of docs/spec")
        for name, ids in self._ids_by_file.items():
            by_state: dict[str, list[str]] = {"shown": [], "FAILED": [], "not run": [], "missing": [], "later": []}
            for spec_id in ids:
                by_state[states.get(spec_id, "later" if spec_id in self._later else "missing")].append(spec_id)
            terminalreporter.line(f"{name}: {len(by_state['shown'])} of {len(ids)} shown")
            for state, found in by_state.items():
                if found:
                    terminalreporter.line(f"  {state:<8} {' '.join(found)}")

    def _states(self) -> dict[str, str]:
        """By id: "shown" if a test passed and none failed; "not run" if its tests were deselected or skipped."""
        outcomes: dict[str, set[str]] = defaultdict(set)
        for test, ids in self._ids_by_test.items():
            for spec_id in ids:
                outcomes[spec_id] |= self._outcomes[test]
        return {
            spec_id: "FAILED" if "failed" in seen else "shown" if "passed" in seen else "not run"
            for spec_id, seen in outcomes.items()
        }
