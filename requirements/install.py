"""Installs what a command needs into Ballast's own environment, then becomes that command.

Started by `./ballast` only when something is missing: `install.py HOME "LOCK ..." COMMAND [ARGUMENTS]`. Needs only the
standard library. It guarantees:

- Two at once: the second waits for the first (by flock, which the kernel releases when the owner dies; pip inherits
  it, so a pip that outlives a killed owner still holds it).
- Arguments that the command refuses are refused before anything is installed for it.
- Interrupted anywhere: a stamp exists only for a lock file that was installed completely. If packages were only being
  added, they are installed again over what is there, so that a command running from this environment keeps its files.
  If the environment was being created, or versions changed, it is created anew. What pip had downloaded stays in
  pip's cache.
- Ctrl-C, SIGTERM and a closed terminal end pip before they end this process, and leave no temporary files.
- The command replaces this process, so that signals reach it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

REQUIREMENTS = Path(__file__).resolve().parent
PIP_GRACE_SECONDS = 5.0
TICK_SECONDS = 0.1
LOG_LINES_SHOWN = 15
COMPILED = "kerberos"
# Found in pip's output if the Kerberos library, Python's headers or a compiler is missing.
WITHOUT_COMPILER = ("krb5-config", "gssapi.h", "Python.h", "cc' failed")
LITTLE_BYTES = 256 * 2**20
# Found in pip's output if it could not connect, resolve a name, or get through a proxy. Without retries it prints only
# the last.
UNREACHABLE = (
    "NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "ProxyError", "Could not fetch URL",
    "(from versions: none)",
)  # fmt: skip
# Neither --help nor parsing arguments needs anything installed. A command that cannot parse them yet does so later.
READ_ARGUMENTS = "import sys; from ballast_cli.__main__ import load; load(sys.argv[1]).parse(sys.argv[2:])"
REFUSED = 2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ADDING, CHANGING = "adding", "changing"  # what was in progress, for whoever finds it unfinished
# Settings that would make pip install somewhere else; the user's settings for where it finds packages stay.
MISLEADING = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT", "PIP_REQUIREMENT", "PYTHONHOME", "PYTHONPATH")


class InstallError(Exception):
    """The environment cannot be created; the text says what to do."""


class Interrupted(Exception):
    """A signal has asked this process to end."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number


class Progress:
    """One line that is updated on a terminal; plain lines elsewhere; nothing more once the terminal is closed."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._moves = out.isatty()
        self._width = 0

    def step(self, text: str) -> None:
        """A stage that may take a while begins."""
        if not self._moves:
            self._write(f"ballast: {text}\n")

    def tick(self, text: str, seconds: float) -> None:
        if not self._moves:
            return
        columns = shutil.get_terminal_size().columns
        frame = "|/-\\"[int(seconds / TICK_SECONDS) % 4]
        self._rewrite(f"{frame} {text} ({seconds:.0f} s)"[: columns - 1])

    def say(self, text: str) -> None:
        self.clear()
        self._write(f"ballast: {text}\n")

    def clear(self) -> None:
        if self._moves and self._width:
            self._rewrite("")

    def _rewrite(self, line: str) -> None:
        self._write("\r" + line.ljust(self._width) + ("" if line else "\r"))
        self._width = len(line)

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())


class Environment:
    """The virtual environment under HOME, its stamps and the lock that guards both."""

    def __init__(self, home: Path, progress: Progress) -> None:
        self.home = home
        self.path = home / "env"
        self.python = self.path / "bin" / "python"
        self._stamps = self.path / "stamps"
        self._busy = home / "installing"
        self._temporary = home / "tmp"
        self._log = home / "install.log"
        self._progress = progress
        self._write_again = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        self.home.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take(lock)
            yield lock
        finally:
            os.close(lock)

    def _take(self, lock: int) -> None:
        waiting_since = time.monotonic()
        waiting = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                text = "another ./ballast is installing; waiting for it"
                if not waiting:
                    self._progress.step(text)
                    waiting = True
                self._progress.tick(text, time.monotonic() - waiting_since)
                time.sleep(TICK_SECONDS)

    def missing(self, locks: list[str]) -> list[str]:
        return [lock for lock in locks if self._stamp_of(lock) != checksum(lock)]

    def _stamp_of(self, lock: str) -> str:
        try:
            return (self._stamps / lock).read_text().strip()
        except OSError:
            return ""

    def prepare(self, lock_handle: int) -> None:
        """Create the environment unless a complete one exists."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        unfinished = self._busy.read_text() if self._busy.exists() else ""
        if self.python.exists() and self._stamps.is_dir() and unfinished in ("", ADDING):
            self._write_again = unfinished == ADDING
            return
        if self.path.exists():
            self._progress.step("the environment was not finished; making it anew")
            shutil.rmtree(self.path)
        self._log.unlink(missing_ok=True)
        self._busy.write_text(CHANGING)
        # The real interpreter by its versioned name: when the system moves to another Python, this link dangles
        # and the environment is created anew, instead of silently losing its packages.
        interpreter = os.path.realpath(sys.executable)
        self._run(
            [interpreter, "-I", "-m", "venv", str(self.path)], f"making an environment in {self.path}", lock_handle
        )
        self._stamps.mkdir()
        self._busy.unlink()

    def install(self, lock: str, lock_handle: int) -> None:
        requirements = REQUIREMENTS / f"{lock}.lock"
        expected = checksum(lock)
        command = [str(self.python), "-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        command += ["--progress-bar", "off", "--no-deps", "--require-hashes", "--requirement", str(requirements)]
        if lock == COMPILED:  # with what was installed before it, which has hashes
            command.append("--no-build-isolation")
        if self._write_again:
            command.append("--ignore-installed")
        present = [stamp.name for stamp in self._stamps.iterdir() if (REQUIREMENTS / f"{stamp.name}.lock").exists()]
        outdated = self.missing(present)
        self._busy.write_text(CHANGING if outdated else ADDING)
        self._run(command, f"installing {lock} ({count_packages(requirements)} packages)", lock_handle)
        self._stamp(lock, expected)
        for other in sorted(REQUIREMENTS.glob("*.lock")):
            if other != requirements and pins(other) <= pins(requirements):
                self._stamp(other.stem, checksum(other.stem))
        self._busy.unlink()
        self._write_again = False

    def _stamp(self, lock: str, text: str) -> None:
        new = self._stamps / f".{lock}"
        new.write_text(text + "\n")
        new.replace(self._stamps / lock)

    def _run(self, command: list[str], text: str, lock_handle: int) -> None:
        """Run one step with its output in the log; if it fails, show the last lines."""
        self._temporary.mkdir(exist_ok=True)
        variables = {name: value for name, value in os.environ.items() if name not in MISLEADING}
        variables["TMPDIR"] = str(self._temporary)
        self._progress.step(text)
        with self._log.open("a", encoding="utf-8") as log:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=variables,
                start_new_session=True, pass_fds=(lock_handle,),
            )  # fmt: skip
            try:
                self._watch(child, text)
            finally:
                end_group(child)
                shutil.rmtree(self._temporary, ignore_errors=True)
        if child.returncode != 0:
            last = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
            raise InstallError(
                "\n".join([f"{text}: failed", *last, *advice(self.home, last), f"All of it: {self._log}"])
            )

    def _watch(self, child: subprocess.Popen[bytes], text: str) -> None:
        since = time.monotonic()
        while True:
            try:
                child.wait(timeout=TICK_SECONDS)
                return
            except subprocess.TimeoutExpired:
                self._progress.tick(f"{text}: {self._last_word()}", time.monotonic() - since)

    def _last_word(self) -> str:
        with contextlib.suppress(OSError, IndexError), self._log.open("rb") as log:
            log.seek(max(0, os.path.getsize(self._log) - 400))
            words = log.read().decode("utf-8", "replace").splitlines()[-1].split()
            return " ".join(words[:2]) if words else ""
        return ""


def advice(home: Path, words: list[str], little_bytes: int = LITTLE_BYTES) -> list[str]:
    """What to do about a step that failed, which the output of pip and venv seldom says."""
    free_bytes, said = shutil.disk_usage(home).free, "\n".join(words)
    if os.strerror(errno.EDQUOT) in said:
        return [f"The quota for {home} is used up: make room, or choose another place with BALLAST_HOME=/path."]
    if free_bytes < little_bytes or os.strerror(errno.ENOSPC) in said:
        left = f"{home} has {free_bytes // 2**20} MB left"
        return [f"{left}: make room, or choose another place with BALLAST_HOME=/path."]
    if any(each in said for each in UNREACHABLE):
        asked = "`pip config list` and HTTPS_PROXY say which one is asked, and by what way."
        return [f"No package index was reached, or it has nothing for this Python; {asked}"]
    if any(each in said for each in WITHOUT_COMPILER):
        return [
            "GSSAPI is named, and its library is compiled here. That needs",
            "  Debian, Ubuntu   sudo apt-get install gcc libkrb5-dev python3-dev",
            "  Fedora           sudo dnf install gcc krb5-devel python3-devel",
        ]
    return []


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End the step's whole process group; asks first, so that pip can clean up."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal_number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=PIP_GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # and whatever its first process has left behind
    child.wait()


def checksum(lock: str) -> str:
    """What `cksum < FILE` prints: the shell compares stamps without starting Python."""
    with (REQUIREMENTS / f"{lock}.lock").open("rb") as file:
        return subprocess.run(["cksum"], stdin=file, stdout=subprocess.PIPE, check=True, text=True).stdout.strip()


def pins(requirements: Path) -> set[str]:
    """The packages and hashes of a lock file: installing one that has all of another's installs that one, too."""
    return {line.removesuffix("\\").strip() for line in requirements.read_text().splitlines() if line[:1] != "#"}


def count_packages(requirements: Path) -> int:
    return sum("==" in line and not line.startswith((" ", "#")) for line in requirements.read_text().splitlines())


def check_arguments(command: tuple[str, ...]) -> None:
    """Refuse bad arguments first: a typo must not cost the download of Spark."""
    read = subprocess.run(
        [sys.executable, "-P", "-c", READ_ARGUMENTS, *command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if read.returncode == REFUSED:
        sys.stderr.write(read.stderr)
        sys.exit(REFUSED)


def raise_interrupted(signal_number: int, _frame: FrameType | None) -> None:
    for number in STOP_SIGNALS:  # after Ctrl-C the terminal may be closed as well: pip must still end first
        signal.signal(number, signal.SIG_IGN)
    raise Interrupted(signal_number)


def install(home: Path, locks: list[str], progress: Progress) -> Environment:
    environment = Environment(home, progress)
    since = time.monotonic()
    with environment.locked() as lock_handle:
        environment.prepare(lock_handle)
        missing = environment.missing(locks)
        if not missing:  # another ./ballast was faster
            return environment
        for lock in missing:
            if environment.missing([lock]):  # unless one installed just now covers it
                environment.install(lock, lock_handle)
    progress.say(f"installed {', '.join(missing)} in {time.monotonic() - since:.0f} s")
    return environment


def main(home: str, locks: str, *command: str) -> NoReturn:
    progress = Progress(sys.stderr)
    heard = set(STOP_SIGNALS)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # `nohup`
        heard.remove(signal.SIGHUP)
    handlers = {number: signal.signal(number, raise_interrupted) for number in heard}
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # `./ballast` blocked Ctrl-C until it is handled
        check_arguments(command)
        environment = install(Path(home), locks.split(), progress)
    except InstallError as error:
        progress.say(str(error))
        sys.exit(1)
    except OSError as error:
        progress.say(f"cannot install into {home}: {error}. Another place: BALLAST_HOME=/path ./ballast ...")
        sys.exit(1)
    except Interrupted as interrupted:
        progress.say("interrupted; run the same command again to go on")
        sys.exit(128 + interrupted.signal_number)
    progress.clear()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # blocked again until the command handles it
    for number, handler in handlers.items():
        signal.signal(number, handler)
    os.execv(environment.python, [str(environment.python), "-P", "-m", "ballast_cli", *command])


if __name__ == "__main__":
    main(*sys.argv[1:])
