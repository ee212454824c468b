"""Move partitions between brokers and directories, by plans in Kafka's format.

generate  propose a plan that levels brokers and directories by bytes, and show
          the usage before and after
execute   print the plan for a rollback, set throttles, and start the plan
verify    show the progress of a plan; remove the throttles once it is complete
          and no other reassignment is running
cancel    stop the moves of a plan that are still running: these replicas stay
          on their previous brokers and directories
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ballast_cli import CommandError, command_config
from ballast_cli.arguments import addresses, at_least_one, bytes_a_second, identifiers
from ballast_cli.reach import require_listener
from ballast_cli.reassignment import (
    CLIENT_ID,
    INTER_BROKER_RATES,
    LOG_DIRS_RATE,
    THROTTLED_REPLICAS,
    Cluster,
    Key,
    Plan,
    Snapshot,
    State,
    Target,
    progress,
    read_plan,
    size_text,
    write_plan,
)
from ballast_operator.model.quantity import counted

RIGHTS = "This needs DESCRIBE and ALTER on the cluster, ALTER_CONFIGS there and on the topics, and DESCRIBE on them."
# The actions for which an option is valid; with the others it would have no effect.
ACTIONS_OF = {
    "topics": {"generate"},
    "brokers": {"generate"},
    "throttle": {"execute"},
    "replica_alter_log_dirs_throttle": {"execute"},
    "additional": {"execute"},
    "preserve_throttles": {"execute", "verify", "cancel"},
    "wait": {"execute", "verify"},
    "timeout_ms": {"execute", "cancel"},
}
LOOK_EVERY_S = 1.0
TIMEOUT_MS = 10_000
# How long to retry while a broker restarts, or has failed and is not fenced yet.
PATIENCE_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("generate", "execute", "verify", "cancel"))
    parser.add_argument("--bootstrap", required=True, type=addresses, metavar="HOST:PORT[,...]", help="brokers")
    command_config.add_argument(parser)
    parser.add_argument("--json", metavar="FILE", help="plan file: generate writes it, the others read it")
    parser.add_argument("--topics", metavar="NAME,...", help="generate: topics to move (default: all)")
    parser.add_argument("--brokers", metavar="ID,...", type=identifiers, help="generate: brokers to use (default: all)")
    parser.add_argument(
        "--throttle", type=bytes_a_second, metavar="BYTES", help="execute: limit per second between brokers, e.g. 50Mi"
    )
    parser.add_argument(
        "--replica-alter-log-dirs-throttle", type=bytes_a_second, metavar="BYTES",
        help="execute: limit per second between directories, e.g. 50Mi",
    )  # fmt: skip
    parser.add_argument(
        "--timeout-ms", type=at_least_one, metavar="MS",
        help=f"execute, cancel: how long brokers may take to accept directories (default: {TIMEOUT_MS})",
    )  # fmt: skip
    parser.add_argument("--additional", action="store_true", help="execute: even if another reassignment is running")
    parser.add_argument(
        "--preserve-throttles", action="store_true", help="execute --wait, verify, cancel: do not remove throttles"
    )
    parser.add_argument("--wait", action="store_true", help="execute, verify: follow the plan until it is complete")


def refused(args: argparse.Namespace) -> str | None:
    for name, takers in ACTIONS_OF.items():
        if getattr(args, name) not in (None, False) and args.action not in takers:
            option, whose = name.replace("_", "-"), ", ".join(sorted(takers))
            return f"{args.action} has no --{option}: that is for {whose}."
    return None if args.json or args.action == "generate" else "--json FILE is required: the plan"


def run(args: argparse.Namespace) -> int:
    options = command_config.library_options(args, CLIENT_ID)
    if args.action == "generate":
        with _connected(args.bootstrap, options, "Nothing was changed.") as cluster:
            return generate(cluster, args)
    plan = _plan_of(args)
    if not plan:
        print("The plan is empty: there is nothing to do.")
        return 0
    actions = {"execute": execute, "verify": verify, "cancel": cancel}
    with _connected(args.bootstrap, options) as cluster:
        return actions[args.action](cluster, args, plan)


@contextlib.contextmanager
def _connected(
    bootstrap: str, options: Mapping[str, Any] | None = None, afterwards: str = "What has started continues."
) -> Iterator[Cluster]:
    """`afterwards` tells the user what state things are in if a broker stops answering."""
    require_listener(bootstrap)
    cluster = Cluster(bootstrap, options)
    from kafka.errors import AuthorizationError, KafkaError

    try:
        yield cluster
    except AuthorizationError as error:
        raise CommandError(f"not authorized by {bootstrap}: {error.message}. {RIGHTS}") from error
    except KafkaError as error:
        raise CommandError(f"{bootstrap} stopped answering: {error}. {afterwards}") from error
    finally:
        cluster.close()


def _timeout_s(args: argparse.Namespace) -> float:
    return (args.timeout_ms or TIMEOUT_MS) / 1000


def _plan_of(args: argparse.Namespace) -> Plan:
    try:
        return read_plan(Path(args.json).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CommandError(f"cannot read the plan {args.json}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"cannot read the plan {args.json}: it is not text") from error


# -- generate


def generate(cluster: Cluster, args: argparse.Namespace) -> int:
    from ballast_planner.balance import PlanError
    from ballast_planner.targets import plan_generate

    seen = cluster.look()
    topics = None if args.topics is None else set(args.topics.split(","))
    brokers = set(args.brokers or (each for each, _ in (*seen.brokers, *seen.away)))
    try:
        planned = plan_generate(_load_of(seen), topics, brokers)
    except (PlanError, ValueError) as error:
        raise CommandError(str(error)) from error
    plan = {Key(move.topic, move.partition): Target(move.to.replicas, move.to.log_dirs) for move in planned.moves}
    if args.json:
        try:
            Path(args.json).write_text(write_plan(plan) + "\n", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"cannot write the plan {args.json}: {error.strerror}") from error
    print("Current partition replica assignment")
    print(write_plan(seen.present(plan)))
    print("\nProposed partition reassignment configuration")
    print(write_plan(plan))
    quality = planned.quality
    if quality is not None:
        before, after = quality.before, quality.after
        print(f"\nFullest directory {before.highest:.1%} -> {after.highest:.1%}, emptiest {before.lowest:.1%} -> "
              f"{after.lowest:.1%}; {size_text(quality.bytes_network)} between brokers, "
              f"{size_text(quality.bytes_disk)} between directories, {counted(len(plan), 'partition')}")  # fmt: skip
    for broker, _ in seen.away:
        print(f"broker {broker} is offline: its directories are unknown, and nothing is moved there", file=sys.stderr)
    shared = _sharing_a_volume(seen)
    if shared:
        print(
            f"The directories of {shared} seem to share one volume, which no move between them levels; "
            f"`ballast rebalance --bootstrap {args.bootstrap} --capacity SIZE` levels their bytes",
            file=sys.stderr,
        )
    if not plan and not planned.unplaced:
        print("\nThere is nothing to move: the directories are as level as moves can make them.")
    for row in planned.unplaced:
        print(f"not moved: {row.topic}-{row.partition} on broker {row.broker}: {row.reason}", file=sys.stderr)
    return 0


def _load_of(seen: Snapshot):  # type: ignore[no-untyped-def]  # the planner is imported only when it is needed
    from ballast_planner.model import Broker, ClusterLoad, Replica

    replicas = []
    for key, ids in seen.replicas.items():
        places = {broker: seen.current.get((key, broker)) for broker in ids}
        largest = max((place.size_bytes for place in places.values() if place), default=0)
        for position, (broker, place) in enumerate(places.items()):
            # No broker describes a replica whose broker or disk is away: assume the size of the partition's largest.
            path, size = (None, largest) if place is None else (place.path, place.size_bytes)
            leads = seen.leaders[key] == broker
            replicas.append(Replica(key.topic, key.partition, broker, path, size, leads, position))
    brokers = [Broker(*each) for each in seen.brokers] + [Broker(*each, alive=False) for each in seen.away]
    return ClusterLoad.from_rows(brokers, _directories_of(seen), replicas)


def _directories_of(seen: Snapshot):  # type: ignore[no-untyped-def]
    from ballast_planner.model import Directory

    return [
        Directory(
            each.broker, each.path, each.total_bytes, each.total_bytes - each.usable_bytes, each.cordoned, each.online
        )
        for each in seen.directories
    ]  # fmt: skip


def _sharing_a_volume(seen: Snapshot) -> str:
    """The brokers whose directories seem to share one volume, in words."""
    from ballast_planner import brokers_with_one_volume

    brokers = brokers_with_one_volume(_directories_of(seen))
    return ("broker " if len(brokers) == 1 else "brokers ") + ", ".join(map(str, brokers)) if brokers else ""


# -- execute


def execute(cluster: Cluster, args: argparse.Namespace, plan: Plan) -> int:
    seen = cluster.look()
    _check(plan, seen, additional=args.additional)
    print("Current partition replica assignment")
    print(write_plan(seen.present(plan)))
    print("\nSave this to use as the --json option during rollback")
    changed = {key: target.replicas for key, target in plan.items() if seen.replicas[key] != target.replicas}
    unthrottled = _throttle(cluster, plan, seen, changed, args)
    if unthrottled:
        for name, reason in unthrottled.items():
            print(f"throttle rejected: {name}: {reason}", file=sys.stderr)
        print(
            "Nothing was moved. To remove the throttles that were set, run verify or cancel with this plan.",
            file=sys.stderr,
        )
        return 1
    # Directories first: a replica that does not exist yet is then created in the right directory (DIR-13).
    wanted = _wanted_directories(plan, seen)
    arriving = {place: path for place, path in wanted.items() if place[1] not in seen.replicas[place[0]]}
    cluster.move_directories(arriving, 0)
    refused = {str(key): reason for key, reason in cluster.reassign(changed).items()}
    if not refused:
        left = cluster.move_directories(wanted, _timeout_s(args))
        refused = {f"{key} on broker {broker}": reason for (key, broker), reason in left.items()}
    for name, reason in refused.items():
        print(f"rejected: {name}: {reason}", file=sys.stderr)
    if refused:
        return 1
    print(f"Successfully started partition reassignments for {counted(len(plan), 'partition')}")
    return _follow(cluster, plan, args) if args.wait else 0


def _check(plan: Plan, seen: Snapshot, *, additional: bool) -> None:
    if seen.reassigning and not additional:
        raise CommandError("Cannot execute because there is an existing partition assignment. Use --additional.")
    known = {broker for broker, _ in seen.brokers}
    for key, target in plan.items():
        if key not in seen.replicas:
            raise CommandError(f"{key} does not exist")
        if unknown := set(target.replicas) - known:
            raise CommandError(f"{key}: brokers {sorted(unknown)} do not exist or are offline")
        for broker, path in target.directories().items():
            directory = seen.directory(broker, path)
            if directory is None or not directory.online:
                what = "has no directory" if directory is None else "has an offline directory"
                raise CommandError(f"{key}: broker {broker} {what} {path}")


def _wanted_directories(plan: Plan, seen: Snapshot) -> dict[tuple[Key, int], str]:
    wanted = {}
    for key, target in plan.items():
        for broker, path in target.directories().items():
            place = seen.current.get((key, broker))
            if place is None or place.path != path or (key, broker) in seen.future:
                wanted[key, broker] = path
    return wanted


def _throttle(
    cluster: Cluster, plan: Plan, seen: Snapshot, changed: Mapping[Key, tuple[int, ...]], args: argparse.Namespace
) -> dict[str, str]:
    """Set the throttles that the arguments ask for; returns what was not accepted, and why."""
    refused: dict[str, str] = {}
    # Each broker validates its own settings: one that is away can take none, but neither sends nor receives.
    away = {broker for broker, _ in seen.away}
    named = {broker for key, target in plan.items() for broker in (*target.replicas, *seen.replicas[key])}
    involved = {str(broker) for broker in named - away}
    rates: dict[str, str | None] = {}
    if args.throttle is not None:
        rates.update(dict.fromkeys(INTER_BROKER_RATES, str(args.throttle)))
        topics: dict[str, tuple[list[str], list[str]]] = {}
        named_topics = {key.topic for key in changed}
        # A topic has a single list, so it must keep the ongoing reassignments of other partitions, and those of this
        # plan if it is executed again to change the throttle.
        ongoing = {key: ids for key, ids in seen.adding.items() if key.topic in named_topics and key in seen.replicas}
        for key, replicas in sorted({**ongoing, **changed}.items()):
            sources = [broker for broker in seen.replicas[key] if broker not in seen.adding.get(key, ())]
            leaders, followers = topics.setdefault(key.topic, ([], []))
            leaders += [f"{key.partition}:{broker}" for broker in sources]
            followers += [f"{key.partition}:{broker}" for broker in replicas if broker not in sources]
        texts = {
            topic: dict(zip(THROTTLED_REPLICAS, map(",".join, both), strict=True)) for topic, both in topics.items()
        }
        refused |= cluster.set_configs("topic", texts)
    if args.replica_alter_log_dirs_throttle is not None:
        rates[LOG_DIRS_RATE] = str(args.replica_alter_log_dirs_throttle)
    if rates:
        refused |= cluster.set_configs("broker", dict.fromkeys(sorted(involved), rates))
    return refused


# -- verify and cancel


def verify(cluster: Cluster, args: argparse.Namespace, plan: Plan) -> int:
    if args.wait:
        return _follow(cluster, plan, args)
    return _report(cluster, plan, args, cluster.look())


def _report(cluster: Cluster, plan: Plan, args: argparse.Namespace, seen: Snapshot) -> int:
    states = progress(plan, seen)
    for state in states:
        print(f"{state.key}: {state.text}")
    if not all(state.done for state in states):
        return 2
    if seen.reassigning and not args.preserve_throttles:
        others = counted(len(seen.reassigning), "other partition")
        print(f"Throttles are kept: {others} being reassigned. Run verify again when that is complete.")
    elif not args.preserve_throttles:
        if not _clear_throttles(cluster, plan, seen):
            return 1
        print("Throttles are removed" + (", except on brokers that are offline." if seen.away else "."))
    failed = sum(state.failed for state in states)
    if failed:
        print(f"Not as planned: {failed} of {counted(len(states), 'partition')}.", file=sys.stderr)
    return 1 if failed else 0


def _follow(cluster: Cluster, plan: Plan, args: argparse.Namespace) -> int:
    try:
        return _watch(cluster, plan, args)
    except KeyboardInterrupt:
        print(
            f"\nThe moves continue. To remove their throttles at the end, run: ballast reassign verify --wait "
            f"--bootstrap {args.bootstrap} --json {args.json}",
            file=sys.stderr,
        )
        raise


def _watch(cluster: Cluster, plan: Plan, args: argparse.Namespace) -> int:
    rate: float | None = None
    before: tuple[float, int] | None = None
    failed_before: list[State] = []
    while True:
        seen = _look_patiently(cluster)
        states = progress(plan, seen)
        left = sum(state.left_bytes for state in states)
        if before is not None and seen.taken_s > before[0]:
            now = max(0.0, (before[1] - left) / (seen.taken_s - before[0]))
            rate = now if rate is None else 0.7 * rate + 0.3 * now
        before = (seen.taken_s, left)
        # A broker that lags behind the controller reports replicas as neither moved nor moving: believe a failure only
        # when it is seen twice.
        failed = [state for state in states if state.failed]
        if all(state.done for state in states) and failed in ([], failed_before):
            print()
            return _report(cluster, plan, args, seen)
        failed_before = failed
        _show(states, left, rate)
        time.sleep(LOOK_EVERY_S)


def _look_patiently(cluster: Cluster) -> Snapshot:
    from kafka.errors import AuthorizationError, KafkaError

    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return cluster.look()
        except AuthorizationError:
            raise  # retrying does not help
        except KafkaError as error:
            if time.monotonic() >= deadline:
                raise
            print(f"\r{f'no answer, retrying: {error}':<78.78}", end="", flush=True)
            time.sleep(LOOK_EVERY_S)


def _show(states: list[State], left: int, rate: float | None) -> None:
    done = sum(state.done for state in states)
    text = f"{done} of {counted(len(states), 'partition')}, {size_text(left)} left"
    if rate:
        text += f", {size_text(int(rate))}/s, {left / rate:.0f} s to go"
    if lacking := sum(state.lacks_room for state in states):
        text += f"; short of space: {lacking}"
    print(f"\r{text:<78}", end="", flush=True)


def _clear_throttles(cluster: Cluster, plan: Plan, seen: Snapshot) -> bool:
    """Remove all throttles; print those that remain, and return whether there are none."""
    rates: dict[str, str | None] = dict.fromkeys((*INTER_BROKER_RATES, LOG_DIRS_RATE))
    replicas: dict[str, str | None] = dict.fromkeys(THROTTLED_REPLICAS)
    stay = cluster.set_configs("broker", {str(broker): rates for broker, _ in seen.brokers})
    topics = sorted({key.topic for key in plan if key in seen.replicas})
    stay |= cluster.set_configs("topic", dict.fromkeys(topics, replicas))
    for name, reason in stay.items():
        print(f"throttle not removed: {name}: {reason}", file=sys.stderr)
    for broker, _ in seen.away:
        print(
            f"throttle possibly not removed: broker {broker} is offline; run verify again when it is back",
            file=sys.stderr,
        )
    return not stay


def cancel(cluster: Cluster, args: argparse.Namespace, plan: Plan) -> int:
    seen = cluster.look()
    running: dict[Key, tuple[int, ...] | None] = {key: None for key in plan if key in seen.reassigning}
    stay = cluster.reassign(running)
    back = {
        (key, broker): seen.current[key, broker].path
        for (key, broker) in seen.future
        if key in plan and (key, broker) in seen.current
    }
    left = cluster.move_directories(back, _timeout_s(args))
    refused = {str(key): reason for key, reason in stay.items()}
    refused |= {f"{key} on broker {broker}": reason for (key, broker), reason in left.items()}
    for name, reason in refused.items():
        print(f"not cancelled: {name}: {reason}", file=sys.stderr)
    moves = counted(len(back) - len(left), "move")
    print(f"Cancelled: {counted(len(running) - len(stay), 'reassignment')}, {moves} between directories")
    cleared = args.preserve_throttles or _clear_throttles(cluster, plan, seen)
    return 1 if refused or not cleared else 0
