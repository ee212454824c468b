"""Starts a process that does not outlive its parent: `python launch.py PARENT_PID SIGNAL COMMAND ARG...`

It asks the kernel for a signal when the parent dies (Linux only), and executes the command in its place. It runs as a
file, without the project's modules, because it delays the start of every process.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def under(*command: str, ended_by: int = signal.SIGTERM) -> list[str]:
    """The command line that starts this command in a process that does not outlive the current one.

    Use it from the main thread: the kernel sends the signal when the thread that started the process ends.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(ended_by)), *command]


def main() -> None:
    parent, ended_by, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ended_by)
        if os.getppid() != parent:
            sys.exit(128 + ended_by)
    try:
        os.execvp(command[0], command)
    except OSError as fault:
        sys.stderr.write(f"cannot start {command[0]!r}: {fault.strerror}\n")
        sys.exit(127 if isinstance(fault, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
