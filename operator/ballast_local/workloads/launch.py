"""Starts a container's process so that it does not outlive the node: `python launch.py PARENT_PID COMMAND ARG...`

Run as a file, without the project's modules, because it is on the way of every start: it asks the kernel for a SIGTERM
when the node dies (Linux only), and becomes the command.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(143)
    try:
        os.execvp(command[0], command)
    except OSError as fault:
        sys.stderr.write(f"cannot start {command[0]!r}: {fault.strerror}\n")
        sys.exit(127 if isinstance(fault, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
