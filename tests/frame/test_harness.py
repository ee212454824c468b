"""tests/conftest.py: what every test relies on must itself be able to fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).resolve().parents[2]
SHARED = "_".join(["ballast", "world"])  # in one word it would bind this file to those that share one
SPEC = "# A\n- LOG-01 one\n- LOG-02 two\n- LOG-03 three\n- LOG-04 four\n"


@pytest.fixture
def run_tests(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs pytest on the text of one test module in a project of its own; returns exit code and output."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "docs" / "spec").mkdir(parents=True)
    (tmp_path / "docs" / "spec" / "log.md").write_text(SPEC)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    def run(text: str, *arguments: str) -> tuple[int, str]:
        (tmp_path / "tests" / "test_it.py").write_text(text)
        sources = [str(ROOT / name) for name in ("broker-image", "operator", "spark")]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": os.pathsep.join([*sources, str(tmp_path)])},
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


def test_async_tests_run_with_fixtures_and_parameters(run_tests: Callable[..., tuple[int, str]]) -> None:
    code, out = run_tests(
        "import asyncio, pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "async def test_good(n, tmp_path):\n    await asyncio.sleep(0)\n    assert n and tmp_path\n"
        "class TestIt:\n    async def test_method(self, tmp_path):\n        assert tmp_path\n"
        "async def test_bad():\n    await asyncio.sleep(0)\n    assert 1 == 2\n"
    )
    assert code == 1
    assert "1 failed, 3 passed" in out


def test_async_property_tests_run(run_tests: Callable[..., tuple[int, str]]) -> None:
    code, out = run_tests(
        "from hypothesis import given, strategies as st\n"
        "@given(st.integers())\nasync def test_small(n):\n    assert n < 1000\n"
        "@given(st.integers())\nasync def test_number(n):\n    assert n == n\n"
    )
    assert code == 1
    assert "1 failed, 1 passed" in out
    assert "n=1000" in out


def test_a_test_that_never_ends_fails(run_tests: Callable[..., tuple[int, str]]) -> None:
    code, out = run_tests(
        "import asyncio, pytest\n@pytest.mark.timeout(4)\nasync def test_stuck():\n    await asyncio.Event().wait()\n"
    )
    assert code == 1
    assert "the test took longer than 4 s" in out


@pytest.mark.parametrize(("phase", "outcome"), [("call", "1 passed, 1 error"), ("teardown", "1 passed")])
def test_a_limit_that_is_over_while_a_report_is_written_does_not_end_pytest(
    run_tests: Callable[..., tuple[int, str]], tmp_path: Path, phase: str, outcome: str
) -> None:
    rings = f"report.when == {phase!r} and signal.raise_signal(signal.SIGALRM)"
    (tmp_path / "late.py").write_text(f"import signal\ndef pytest_runtest_logreport(report):\n    {rings}\n")
    code, out = run_tests("import pytest\n@pytest.mark.timeout(50)\ndef test_it():\n    pass\n", "-p", "late")
    assert (code, outcome in out) == (int("error" in outcome), True), out


def test_a_failure_behind_the_back_of_the_test_fails_it(run_tests: Callable[..., tuple[int, str]]) -> None:
    code, out = run_tests(
        "import asyncio\n"
        "async def test_callback():\n"
        "    asyncio.get_running_loop().call_soon(lambda: 1 / 0)\n    await asyncio.sleep(0.001)\n"
    )
    assert code == 1
    assert "unseen by the test" in out
    assert "ZeroDivisionError" in out


def test_blocking_the_loop_fails(run_tests: Callable[..., tuple[int, str]]) -> None:
    code, out = run_tests(
        "import time\n"
        "from ballast_wire import errors\n"
        "sleeper = eval(compile('lambda: time.sleep(0)', errors.__file__, 'eval'))\n"
        "async def test_blocks():\n    sleeper()\n"
        "def test_may_block():\n    sleeper()\n"
    )
    assert code == 1
    assert "1 failed, 1 passed" in out
    assert "Blocking call to time.sleep" in out


def test_a_client_that_is_not_closed_fails_its_file_and_no_other(
    run_tests: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    each = (
        "import pytest\nfrom kafka import KafkaConsumer, KafkaProducer\n"
        "def client(kind):\n    return kind(bootstrap_servers='127.0.0.1:1', api_version=(3, 0), client_id=__name__)\n"
        "@pytest.fixture(scope='module', autouse=True)\ndef of_the_file():\n"
        "    made = client(KafkaProducer)\n    yield\n    made.close()\n"
        "def test_one():\n    client(KafkaConsumer){}\n"
        "def test_two():\n    client(KafkaConsumer).close()\n"
    )
    (tmp_path / "tests" / "test_a.py").write_text(each.format(""))
    code, out = run_tests(each.format(".close()"))
    assert code == 1
    assert "4 passed, 1 error" in out
    assert re.findall(r"ERROR at teardown of (\w+)", out) == ["test_two"]
    told = re.findall(r"^clients that were not closed: (.*)$", out, re.MULTILINE)
    assert told == ["kafka-io-tests.test_a, first seen after tests/test_a.py::test_one"]


def test_warnings_are_errors(run_tests: Callable[..., tuple[int, str]]) -> None:
    code, out = run_tests("import warnings\ndef test_it():\n    warnings.warn('old', DeprecationWarning)\n")
    assert (code, "1 failed" in out) == (1, True)


def test_what_needs_real_programs_waits_to_be_asked_for(run_tests: Callable[..., tuple[int, str]]) -> None:
    text = (
        "import pytest\n@pytest.mark.java\ndef test_java():\n    pass\n"
        "@pytest.mark.prometheus\ndef test_prometheus():\n    pass\ndef test_plain():\n    pass\n"
    )
    assert "1 passed, 2 deselected" in run_tests(text)[1]
    assert "1 passed, 2 deselected" in run_tests(text, "-m", "java")[1]
    assert "2 passed, 1 deselected" in run_tests(text, "-m", "java or prometheus")[1]
    assert "1 passed, 2 deselected" in run_tests(text, "-m", "not java")[1]
    assert run_tests(text, "-m", "kubernetes")[0] == 5


def test_spec_report_tells_shown_from_failed_not_run_and_missing(run_tests: Callable[..., tuple[int, str]]) -> None:
    code, out = run_tests(
        "import pytest\n"
        "@pytest.mark.spec('LOG-01', 'LOG-02')\ndef test_a():\n    pass\n"
        "@pytest.mark.spec('LOG-02')\ndef test_b():\n    assert 0\n"
        "@pytest.mark.spec('LOG-03')\n@pytest.mark.java\ndef test_c():\n    pass\n",
        "--spec-report",
    )
    assert code == 1
    assert "log.md: 1 of 4 shown" in out
    for state in ("shown    LOG-01\n", "FAILED   LOG-02\n", "not run  LOG-03\n", "missing  LOG-04\n"):
        assert f"  {state}" in out


def test_an_unknown_behaviour_is_refused(run_tests: Callable[..., tuple[int, str]]) -> None:
    code, out = run_tests("import pytest\n@pytest.mark.spec('LOG-99')\ndef test_a():\n    pass\n")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "docs/spec has no LOG-99" in out


def test_files_that_share_what_is_there_once_are_in_one_process(
    run_tests: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    each = "import time\n{}\ndef test_one():\n    time.sleep(0.2)\ndef test_two():\n    time.sleep(0.2)\n"
    for name in "abcd":
        (tmp_path / "tests" / f"test_{name}.py").write_text(each.format(f"# {SHARED}" if name in "ad" else ""))
    code, out = run_tests(each.format(""), "-vv", "-n2")
    ran = {name: process for process, name in re.findall(r"\[(gw\d)\].* PASSED tests/test_(\w+)\.py::test_one", out)}
    assert code == 0
    assert ran["a"] == ran["d"]
    assert len(set(ran.values())) == 2


def test_what_may_take_longest_comes_first(run_tests: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    (tmp_path / "tests" / "test_a.py").write_text("def test_one():\n    pass\n")
    (tmp_path / "tests" / "test_b.py").write_text("def test_one():\n    pass\ndef test_two():\n    pass\n")
    long = "import pytest\ndef test_one():\n    pass\n@pytest.mark.timeout(300)\ndef test_two():\n    pass\n"
    (tmp_path / "tests" / "test_c.py").write_text(long)
    code, out = run_tests("", "-vv", "-n1")
    assert code == 0
    assert re.findall(r"PASSED tests/test_(\w)\.py::test_(\w+)", out) == [
        ("c", "one"), ("c", "two"), ("b", "one"), ("b", "two"), ("a", "one"),
    ]  # fmt: skip


def test_what_ci_would_not_find_is_refused(run_tests: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    """Its stages read only files that name their markers."""
    text = "import pytest\n@getattr(pytest.mark, 'java')\ndef test_a():\n    pass\n"
    code, out = run_tests(text)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "test_it.py::test_a: .ci/run reads files that say mark.java" in out
    (tmp_path / "tests" / "conftest.py").write_text((tmp_path / "tests" / "conftest.py").read_text() + "# mark.java\n")
    assert run_tests(text)[0] == pytest.ExitCode.NO_TESTS_COLLECTED
