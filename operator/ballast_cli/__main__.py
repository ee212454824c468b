"""The command line: finds a command's module, lets it declare its arguments, and runs it.

There is one module per command, imported only when that command is called, so that a broker never pays for Spark. A
module has `add_arguments(parser)` and `run(args)`, which returns the exit code. `args.command` is the command's name.
A module that sets `PASSES_ARGUMENTS_ON = True` gets unknown arguments in `args.rest`; otherwise they are an error. One
that sets `OWN_HELP = True` adds --help itself. An optional `refused(args)` says why a combination of arguments is
invalid; it is part of parsing, so that such errors are reported before anything is installed.
`./ballast` defines which packages a command needs installed.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    # Until `main` can handle KeyboardInterrupt, Ctrl-C kills the process the default way: without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `./ballast` blocked it

import argparse
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, cast

from ballast_cli import DISK_FULL, CommandError, examples, nearest

KUBE_VERBS = ("get", "apply", "patch", "delete", "describe", "wait")
MODULES = {
    "up": "up",
    "demo": "demo",
    "status": "status",
    "broker": "broker",
    "operator": "operator_",
    "reassign": "reassign",
    "rebalance": "rebalance",
    "bench": "bench",
    "chaos": "chaos",
    "soak": "soak",
    "e2e": "e2e",
    "test": "test",
    "image": "image",
    **dict.fromkeys(KUBE_VERBS, "kube"),
}


class CommandModule(Protocol):
    """The interface of a command's module."""

    __doc__: str | None
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """Asks whether the nearest option was meant by one that does not exist."""

    def error(self, message: str) -> NoReturn:
        if "unrecognized arguments: " in message:
            options = [word.split("=")[0] for word in message.split() if word.startswith("--")]
            message += "." + "".join(nearest.meant(option, self._option_string_actions) for option in options[:1])
        super().error(message)


@dataclass(frozen=True)
class Command:
    name: str
    module: CommandModule

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        parser = Parser(
            prog=f"ballast {self.name}",
            description=(self.module.__doc__ or "").strip(),
            epilog=examples.told(self.name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=not getattr(self.module, "OWN_HELP", False),
        )
        parser.set_defaults(command=self.name)
        self.module.add_arguments(parser)
        if getattr(self.module, "PASSES_ARGUMENTS_ON", False):
            args, rest = parser.parse_known_args(arguments)
            args.rest = rest
        else:
            args = parser.parse_intermixed_args(arguments)  # `get topics -n kafka orders`, as kubectl takes it
        refused: Callable[[argparse.Namespace], str | None] | None = getattr(self.module, "refused", None)
        if refused is not None and (why := refused(args)):
            parser.exit(2, f"ballast {self.name}: {why}\n")
        return args


def load(name: str) -> Command:
    """Return the command of this name; raises CommandError if there is none."""
    if name not in MODULES:
        raise CommandError(f"there is no command '{name}'; ./ballast --help lists all.{nearest.meant(name, MODULES)}")
    return Command(name, cast(CommandModule, importlib.import_module(f"ballast_cli.{MODULES[name]}")))


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None:
        _end_in_order()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print("Usage: ballast COMMAND [ARGUMENTS]\nCommands:", ", ".join(MODULES))
        return 0
    if sys.stdin is None:  # closed by the parent process
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        # A terminal whose encoding lacks the bar characters shows question marks instead of a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command = load(arguments[0])
        code = command.module.run(command.parse(arguments[1:]))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader, for instance `head`, has closed the pipe. Python would try to flush the rest at exit.
        _forget_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno in DISK_FULL:
            _forget_output()
        elif error.errno not in (errno.EROFS, errno.EACCES) or not error.filename:
            raise
        where = f": {error.filename}" if error.filename else ""
        print(f"ballast {arguments[0]}: {error.strerror}{where}", file=sys.stderr)
        return 1
    except CommandError as error:
        print(f"ballast {arguments[0]}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_in_order() -> None:
    """Make SIGTERM, and SIGHUP from a closed terminal, unwind the command so that it stops what it started.

    Most commands need nothing else; others install their own handlers later. Until they do, this also lets a command
    that is process 1 of a container be stopped: the kernel ignores signals for which process 1 has no handler.
    """
    terminals = [handle for handle in (1, 2) if os.isatty(handle)]

    def hung_up(*_: object) -> None:
        for handle in terminals:
            if not os.isatty(handle):  # the terminal is gone: writes to it would fail
                os.dup2(os.open(os.devnull, os.O_WRONLY), handle)
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # `nohup` leaves it ignored
        signal.signal(signal.SIGHUP, hung_up)


if __name__ == "__main__":
    code = main()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # only interpreter shutdown is left
    sys.exit(code)
