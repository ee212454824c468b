"""Mounts real file systems that can be made to fail where a broker's log directory will be. Needs root.

Every class is a context manager: mounted on entry, unmounted on exit (lazily, even if still in use). Mounts are in a
mount namespace of the thread that makes them and of what it starts from then on; the kernel removes them with the last
of these, however they end. `why_not` says what a machine lacks.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from ballast_local.workloads import launch

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
COMMAND_S = 60
EXT4_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
SHUT_DOWN_WITHOUT_LOG = 2
CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 1 << 14 | 1 << 18


def why_not() -> str | None:
    """What this machine lacks for loop devices and FUSE, or None."""
    if os.getuid() != 0:
        return "only root may mount file systems"
    for command in ("losetup", "mkfs.ext4", "mount", "umount"):
        if shutil.which(command) is None:
            return f"there is no {command}"
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.access(device, os.R_OK | os.W_OK):
            return f"there is no {device}"
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False, timeout=COMMAND_S)
    return None if probe.returncode == 0 else "mounting is not allowed here"


def run(*command: object) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, timeout=COMMAND_S
    )  # fmt: skip
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


@cache
def _mount_apart() -> None:
    """Enter a mount namespace, once per process, in its main thread: no mount may outlive the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC_PRIVATE, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Mounted:
    """Something mounted at `path`."""

    def __init__(self, path: Path) -> None:
        _mount_apart()
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def __exit__(self, *_: object) -> None:
        self.unmount()

    def unmount(self) -> None:
        if os.path.ismount(self.path):
            run("umount", "--lazy", self.path)


class LoopDisk(Mounted):
    """ext4 in a file: it can fill up, be pulled out, or go read-only as after an error of the disk below."""

    def __init__(self, path: Path, image: Path, size_bytes: int) -> None:
        super().__init__(path)
        self._image = image
        self._device = ""
        with image.open("wb") as file:
            file.truncate(size_bytes)

    def __enter__(self) -> LoopDisk:
        run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-m", "0", self._image)
        self.mount()
        return self

    def mount(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro", self._image, self.path)
        self._device = Path(run("findmnt", "--noheadings", "--output", "SOURCE", self.path)).name

    def go_read_only(self) -> None:
        Path(f"/sys/fs/ext4/{self._device}/trigger_fs_error").write_text("a test wants it\n")

    def pull_out(self) -> None:
        """From now on every read and write fails."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, EXT4_SHUTDOWN, struct.pack("I", SHUT_DOWN_WITHOUT_LOG))
        finally:
            os.close(descriptor)

    def repair(self) -> None:
        """Unmount, check and mount again. Nobody may be using it."""
        run("umount", self.path)
        checked = subprocess.run(
            ["e2fsck", "-fy", str(self._image)], capture_output=True, text=True, check=False, timeout=COMMAND_S
        )
        if checked.returncode > 1:  # 1: errors were corrected
            raise OSError(f"e2fsck: {checked.stdout}")
        self.mount()


class ThinDisk(LoopDisk):
    """ext4 that promises more than the memory below it holds: writes succeed, fsync fails."""

    def __init__(self, path: Path, below: Path, size_bytes: int, real_bytes: int) -> None:
        self._below = below
        below.mkdir(parents=True, exist_ok=True)
        _mount_apart()
        run("mount", "-t", "tmpfs", "-o", f"size={real_bytes}", "thin", below)
        super().__init__(path, below / "image", size_bytes)

    def __exit__(self, *arguments: object) -> None:
        super().__exit__(*arguments)
        with contextlib.suppress(OSError):
            run("umount", "--lazy", self._below)


class FaultyMount(Mounted):
    """`e2e.faulty_disk` in a process of its own, which fails with the error that it is told."""

    def __init__(self, path: Path, behind: Path) -> None:
        super().__init__(path)
        behind.mkdir(parents=True, exist_ok=True)
        self.behind = behind
        self._fault = behind.with_suffix(".fault")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FaultyMount:
        command = [sys.executable, "-m", "e2e.faulty_disk", str(self.behind), str(self.path), str(self._fault)]
        self._process = subprocess.Popen(launch.under(*command, ended_by=signal.SIGKILL), cwd=ROOT)
        deadline = time.monotonic() + COMMAND_S
        while not os.path.ismount(self.path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"{self.path} could not be mounted")
            time.sleep(0.01)
        return self

    def fail(self, error: str) -> None:
        """Fail from now on with EIO, ENOSPC, EROFS, or be SLOW or HUNG."""
        fresh = self._fault.with_suffix(".new")
        fresh.write_text(error)
        fresh.rename(self._fault)

    def vanish(self) -> None:
        """From now on every call fails, even closing a file (ENOTCONN)."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def heal(self) -> None:
        self._fault.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        self.heal()
        self.unmount()
        if self._process is not None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:  # unmounted lazily, but a file is still open
                self._process.kill()
                self._process.wait()
