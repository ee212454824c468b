"""get, apply, patch, delete, describe and wait, for users without kubectl."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from ballast_cli import CommandError, kube_wait
from ballast_cli.kube_api import NOT_FOUND, TABLE, Kind, KubeApi, Obj, Refused
from ballast_cli.kube_files import documents, parsed
from ballast_cli.kube_output import FORMS, aligned, is_table, output, print_objects

MANAGER = "ballast"
SUMMARIES = {
    "get": "Show resources: as a table, as YAML or JSON, or some of their fields.",
    "apply": "Create or change resources from files.\n\nAlways server-side, with field manager `ballast`.",
    "patch": "Change fields of a resource.",
    "delete": "Delete resources, and wait until they are gone.",
    "describe": "Show resources in detail, with their events.",
    "wait": "Wait until resources meet a condition or are deleted.",
}
PATCHES = {"merge": "merge-patch", "json": "json-patch"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    command = parser.get_default("command")
    parser.description = (
        f"{SUMMARIES[command]}\n\nArguments and output are those of `kubectl {command}`, as far as supported."
    )
    parser.add_argument("--kubeconfig", help="kubeconfig file (default: $KUBECONFIG, ~/.kube/config)")
    parser.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    parser.add_argument("-n", "--namespace", help="namespace (default: that of the context)")
    if command != "apply":
        parser.add_argument(
            "what", nargs="*", metavar="TYPE NAME | TYPE/NAME", help="resources, e.g. kafkatopics or kafkatopic/orders"
        )
    if command in ("get", "describe", "delete", "wait"):
        parser.add_argument("-A", "--all-namespaces", action="store_true", help="use all namespaces")
        parser.add_argument("-l", "--selector", default="", help="labels to select by, e.g. app=x")
    if command in ("delete", "wait"):
        parser.add_argument("--all", action="store_true", help="select all resources of the TYPE")
    if command != "patch":
        parser.add_argument(
            "-f", "--filename", action="append", default=[], help="file, directory, or - for stdin; repeatable"
        )
        parser.add_argument("-R", "--recursive", action="store_true", help="include subdirectories")
        parser.add_argument("-k", "--kustomize", type=_kustomized, metavar="DIR", help=argparse.SUPPRESS)
    _ADDERS[command](parser)


def _kustomized(folder: str) -> str:
    raise argparse.ArgumentTypeError(
        f"kustomizations are built by kubectl: kubectl kustomize {folder} | ./ballast apply -f -"
    )


def _add_get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=output, default="", metavar="FORM", help=f"format (default: a table): {FORMS}"
    )
    parser.add_argument("-w", "--watch", action="store_true", help="keep watching, and print every change")


def _add_apply(parser: argparse.ArgumentParser) -> None:
    _add_dry_run(parser)
    parser.add_argument("--force-conflicts", action="store_true", help="take over fields from other managers")


def _add_patch(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(selector="", all_namespaces=False, filename=[])  # what is patched is named
    parser.add_argument(
        "--type", choices=tuple(PATCHES), required=True, help="JSON merge patch (RFC 7386) or JSON patch (RFC 6902)"
    )
    parser.add_argument("-p", "--patch", required=True, metavar="PATCH", help="the patch, as JSON or YAML")
    _add_dry_run(parser)


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", choices=["none", "server"], default="none", help="server: show what would be done (default: none)"
    )


def _add_delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait", default="true", choices=["true", "false"], help="wait until the resources are gone (default: true)"
    )
    parser.add_argument(
        "--cascade", choices=["background", "foreground", "orphan"], default="background",
        help="delete dependents after the resource, before it, or not at all (default: background)",
    )  # fmt: skip
    parser.add_argument("--ignore-not-found", action="store_true", help="succeed if a resource does not exist")
    parser.add_argument("--timeout", type=kube_wait.seconds_of, default="300s", help="how long to wait (default: 300s)")


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="goal",
        required=True,
        type=kube_wait.goal_of,
        metavar="GOAL",
        help=f"what to wait for: {kube_wait.FORMS}",
    )
    parser.add_argument(
        "--timeout", type=kube_wait.seconds_of, default="30s", help="how long to wait, for all together (default: 30s)"
    )


def run(args: argparse.Namespace) -> int:
    api = KubeApi.found(args.kubeconfig, args.context)
    return _COMMANDS[args.command](api, args)


# what is meant

# (kind, namespace, name): the namespace is None for all namespaces, the name is empty for all objects of the kind.
Wanted = tuple[Kind, str | None, str]


def _wanted(api: KubeApi, args: argparse.Namespace) -> list[Wanted]:
    """What the command is about, from -f or from the positional arguments."""
    if args.filename:
        if args.what or args.selector or args.all_namespaces or getattr(args, "all", False):
            raise CommandError("-f says all: it does not go with TYPE NAME, -l, -A or --all.")
        return [_place(api, args, obj) for obj in documents(args.filename, args.recursive)]
    found = _kinds_and_names(api, args.what)
    if any(name for _, name in found):
        if args.selector:
            raise CommandError("name cannot be provided when a selector is specified.")
        if args.all_namespaces:
            raise CommandError("a resource cannot be retrieved by name across all namespaces.")
    namespace = None if args.all_namespaces else args.namespace or api.namespace
    return [(kind, namespace, name) for kind, name in found]


def _kinds_and_names(api: KubeApi, words: list[str]) -> list[tuple[Kind, str]]:
    """Parse the positional arguments. A category expands to all its kinds."""
    if not words:
        raise CommandError("say what: TYPE, TYPE NAME or TYPE/NAME.")
    if any("/" in word for word in words):
        pairs = [word.partition("/") for word in words]
        return [(api.kind(kind), name) for kind, _, name in pairs]
    types, names = words[0].split(","), words[1:]
    if names:
        return [(api.kind(one), name) for one in types for name in names]
    found: list[tuple[Kind, str]] = []
    for one in types:
        members = api.category(one)
        found += [(kind, "") for kind in members] if members else [(api.kind(one), "")]
    return found


def _place(api: KubeApi, args: argparse.Namespace, obj: Obj) -> Wanted:
    kind = api.kind_of(obj)
    metadata = obj.get("metadata") or {}
    if not metadata.get("name"):
        raise CommandError(f"a {obj.get('kind')} without metadata.name is nobody's.")
    namespace = metadata.get("namespace") or args.namespace or api.namespace
    if kind.namespaced and args.namespace and namespace != args.namespace:
        raise CommandError(
            f'the namespace from the provided object "{namespace}" does not match the namespace "{args.namespace}". '
            f"You must pass '--namespace={namespace}' to perform this operation."
        )
    return kind, namespace, str(metadata["name"])


def _require_which(args: argparse.Namespace, ways: str) -> None:
    """Refuse a TYPE alone: a forgotten name must not mean all."""
    named = len(args.what) > 1 or any("/" in word for word in args.what)
    if args.all and (named or args.selector):
        raise CommandError("--all is all of a TYPE: it does not go with names or -l.")
    if not (args.all or named or args.selector or args.filename):
        raise CommandError(f"say which: {ways}.")


def _query(args: argparse.Namespace) -> dict[str, str]:
    return {"labelSelector": args.selector} if args.selector else {}


def _objects(
    api: KubeApi, args: argparse.Namespace, wanted: list[Wanted]
) -> tuple[list[tuple[Kind, Obj]], list[Refused]]:
    """The objects that exist, and the error for each named one that does not: it does not prevent the others."""
    found: list[tuple[Kind, Obj]] = []
    absent: list[Refused] = []
    for kind, namespace, name in wanted:
        if not name:
            answer = api.call("GET", kind.path(namespace), _query(args))
            found += [(kind, item | {"kind": kind.kind}) for item in answer["items"]]
            continue
        try:
            found.append((kind, api.call("GET", kind.path(namespace, name))))
        except Refused as refusal:
            if refusal.code != NOT_FOUND:
                raise
            absent.append(refusal)
    return found, absent


def _tell(absent: list[Refused]) -> int:
    for refusal in absent:
        print(refusal, file=sys.stderr)
    return 1 if absent else 0


# get


def _get(api: KubeApi, args: argparse.Namespace) -> int:
    wanted = _wanted(api, args)
    if is_table(args.output):
        return _get_tables(api, args, wanted)
    if args.watch:
        raise CommandError(f"-w goes on with the table; it does not go with -o {args.output}.")
    found, absent = _objects(api, args, wanted)
    if found or not absent:
        print_objects(found, args.output, by_name=len(wanted) == 1 and bool(wanted[0][2]))
    return _tell(absent)


def _get_tables(api: KubeApi, args: argparse.Namespace, wanted: list[Wanted]) -> int:
    """Print one table for each kind."""
    if args.watch and len(wanted) > 1:
        raise CommandError("you may only specify a single resource type, or one by its name, with -w.")
    tables: dict[Kind, list[Obj]] = {kind: [] for kind, _, _ in wanted}
    absent: list[Refused] = []
    for kind, namespace, name in wanted:
        try:
            path, query = kind.path(namespace, name), {} if name else _query(args)
            tables[kind].append(api.call("GET", path, query, accept=TABLE))
        except Refused as refusal:
            if refusal.code != NOT_FOUND or not name:
                raise
            absent.append(refusal)
    printed = False
    for kind, found in tables.items():
        parts = [_rows(table, args, kind if len(tables) > 1 else None) for table in found]
        rows = [row for part in parts for row in (part if part is parts[0] else part[1:])]
        if len(rows) > 1:
            print(("\n" if printed else "") + aligned(rows), flush=True)
            printed = True
    if absent:
        return _tell(absent)
    if args.watch:
        _watch(api, wanted[0], tables[wanted[0][0]][0], args)
    elif not printed:
        namespace = wanted[0][1]
        where = f" in {namespace} namespace" if namespace and any(kind.namespaced for kind in tables) else ""
        print(f"No resources found{where}.", file=sys.stderr)
    return 0


def _rows(table: Obj, args: argparse.Namespace, prefix: Kind | None = None) -> list[list[str]]:
    shown = [
        index
        for index, column in enumerate(table["columnDefinitions"])
        if args.output == "wide" or not column.get("priority")
    ]
    spaced = args.all_namespaces and any(row["object"]["metadata"].get("namespace") for row in table["rows"])
    head = [table["columnDefinitions"][index]["name"].upper() for index in shown]
    rows = [(["NAMESPACE"] if spaced else []) + head]
    for row in table["rows"]:
        cells = ["<none>" if row["cells"][index] in (None, "") else str(row["cells"][index]) for index in shown]
        if prefix is not None and cells:
            cells[0] = prefix.shown(cells[0])
        rows.append(([row["object"]["metadata"].get("namespace", "")] if spaced else []) + cells)
    return rows


def _watch(api: KubeApi, wanted: Wanted, table: Obj, args: argparse.Namespace) -> None:
    kind, namespace, name = wanted
    query = _query(args) | {"resourceVersion": table["metadata"]["resourceVersion"]}
    if name:
        query["fieldSelector"] = f"metadata.name={name}"
    for event in api.watch(kind.path(namespace), query, TABLE):
        if event["type"] == "ERROR":
            raise CommandError(event["object"].get("message", "the watch ended."))
        if event["type"] != "BOOKMARK":
            print("   ".join(_rows(event["object"], args)[-1]), flush=True)


# apply and delete


def _apply(api: KubeApi, args: argparse.Namespace) -> int:
    failed = 0
    for obj in documents(args.filename, args.recursive):
        query = {"fieldManager": MANAGER, "force": str(args.force_conflicts).lower(), "fieldValidation": "Strict"}
        if args.dry_run == "server":
            query["dryRun"] = "All"
        try:
            kind, namespace, name = _place(api, args, obj)
            path, shown = kind.path(namespace, name), kind.shown(name)
            before = _found(api, path)
            after = api.call("PATCH", path, query, obj, content_type="application/apply-patch+yaml")
        except CommandError as refusal:
            # The server's own words are printed as kubectl prints them.
            print(refusal if isinstance(refusal, Refused) else f"ballast apply: {refusal}", file=sys.stderr)
            failed = max(failed, refusal.exit_code)
            continue
        same = before is not None and _content(before) == _content(after)
        word = "created" if before is None else "unchanged" if same else "configured"
        print(f"{shown} {word}" + (" (server dry run)" if args.dry_run == "server" else ""))
        if kind.kind == "CustomResourceDefinition" and args.dry_run == "none":
            kube_wait.until(api, path, kube_wait.condition("Established", "True"), 30.0, shown)
    return failed


def _found(api: KubeApi, path: str) -> Obj | None:
    try:
        found: Obj = api.call("GET", path)
    except Refused as refusal:
        if refusal.code == NOT_FOUND:
            return None
        raise
    return found


def _content(obj: Obj) -> Obj:
    """What an apply may change. Comparing resourceVersion would not do: a dry run keeps it, a new status changes it."""
    by_others = ("managedFields", "resourceVersion", "generation")
    metadata = {name: value for name, value in obj["metadata"].items() if name not in by_others}
    return {name: value for name, value in obj.items() if name != "status"} | {"metadata": metadata}


def _delete(api: KubeApi, args: argparse.Namespace) -> int:
    _require_which(args, "TYPE NAME, TYPE/NAME, -l LABELS, TYPE --all or -f FILE")
    wanted = _wanted(api, args)
    targets = [target for one in (wanted[::-1] if args.filename else wanted) for target in _named(api, args, one)]
    failed = 0
    going: list[tuple[str, str, str]] = []
    for kind, namespace, name in targets:
        path, shown = kind.path(namespace, name), kind.shown(name)
        try:
            answer = api.call("DELETE", path, body={"propagationPolicy": args.cascade.capitalize()})
        except Refused as refusal:
            if refusal.code != NOT_FOUND or not args.ignore_not_found:
                print(refusal, file=sys.stderr)
                failed = 1
            continue
        print(f'{kind.qualified} "{name}" deleted' + (f" from {namespace} namespace" if kind.namespaced else ""))
        # The uid, from the object being deleted or from a Status: a controller may recreate the object at once.
        going.append((path, shown, (answer.get("details") or answer.get("metadata") or {}).get("uid", "")))
    if not targets:
        print("No resources found.", file=sys.stderr)
    if args.wait == "true" and not failed:
        for path, shown, uid in going:
            kube_wait.until(api, path, kube_wait.DELETION, args.timeout, shown, uid)
    return failed


def _named(api: KubeApi, args: argparse.Namespace, wanted: Wanted) -> list[Wanted]:
    """Expand "all objects" to each of them by name."""
    kind, namespace, name = wanted
    if name:
        return [wanted]
    found = [item["metadata"] for item in api.call("GET", kind.path(namespace), _query(args))["items"]]
    return [(kind, metadata.get("namespace"), metadata["name"]) for metadata in found]


# patch


def _patch(api: KubeApi, args: argparse.Namespace) -> int:
    import yaml

    try:
        changes = parsed(os.fsencode(args.patch))
    except yaml.YAMLError as fault:
        raise CommandError(f"the patch is neither JSON nor YAML: {fault}") from None
    wanted = list if args.type == "json" else dict
    if len(changes) != 1 or not isinstance(changes[0], wanted):
        raise CommandError(f"a patch of type {args.type} is {'a list' if wanted is list else 'an object'}.")
    targets = _wanted(api, args)
    if not all(name for _, _, name in targets):
        raise CommandError("say which: TYPE NAME or TYPE/NAME.")
    query = {"fieldManager": f"{MANAGER}-patch", "fieldValidation": "Strict"}
    if args.dry_run == "server":
        query["dryRun"] = "All"
    for kind, namespace, name in targets:
        path = kind.path(namespace, name)
        before = api.call("GET", path)
        after = api.call("PATCH", path, query, changes[0], content_type=f"application/{PATCHES[args.type]}+json")
        same = " (no change)" if _content(before) == _content(after) else ""
        print(f"{kind.shown(name)} patched{same}" + (" (server dry run)" if args.dry_run == "server" else ""))
    return 0


# describe


def _describe(api: KubeApi, args: argparse.Namespace) -> int:
    found, absent = _objects(api, args, _wanted(api, args))
    import yaml

    if not found and not absent:
        print("No resources found.", file=sys.stderr)
    for index, (_, obj) in enumerate(found):
        if index:
            print("\n")
        metadata = obj["metadata"]
        for field in ("managedFields", "annotations"):
            metadata.pop(field, None)
        print(yaml.safe_dump(obj, sort_keys=False, allow_unicode=True), end="")
        _print_events(api, obj)
    return _tell(absent)


def _print_events(api: KubeApi, obj: Obj) -> None:
    metadata = obj["metadata"]
    kind = api.kind("events")
    query = {"fieldSelector": f"involvedObject.uid={metadata['uid']}"}
    events = api.call("GET", kind.path(metadata.get("namespace") or "default"), query)["items"]
    events.sort(key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")
    rows = [["TYPE", "REASON", "COUNT", "LAST SEEN", "MESSAGE"]]
    for event in events:
        seen = event.get("lastTimestamp") or event.get("eventTime") or ""
        rows.append([event.get("type", ""), event.get("reason", ""), str(event.get("count", 1)), seen,
                     event.get("message", "").replace("\n", " ")])  # fmt: skip
    print("Events:" + ("  <none>" if len(rows) == 1 else "\n" + aligned(rows)))


# wait


def _wait(api: KubeApi, args: argparse.Namespace) -> int:
    goal: kube_wait.Goal = args.goal
    _require_which(args, "TYPE NAME, TYPE/NAME, -l LABELS, TYPE --all or -f FILE")
    deadline = time.monotonic() + args.timeout
    found, absent = _objects(api, args, _wanted(api, args))
    if not goal.deletion:
        if absent:
            return _tell(absent)
        if not found:
            raise CommandError("no matching resources found.")
    for kind, obj in found:
        metadata = obj["metadata"]
        path, shown = kind.path(metadata.get("namespace"), metadata["name"]), kind.shown(metadata["name"])
        kube_wait.until(api, path, goal, max(0.0, deadline - time.monotonic()), shown, str(metadata["uid"]))
        print(f"{shown} condition met")
    return 0


_ADDERS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "get": _add_get, "apply": _add_apply, "patch": _add_patch, "delete": _add_delete,
    "describe": lambda parser: None, "wait": _add_wait,
}  # fmt: skip
_COMMANDS: dict[str, Callable[[KubeApi, argparse.Namespace], int]] = {
    "get": _get, "apply": _apply, "patch": _patch, "delete": _delete, "describe": _describe, "wait": _wait,
}  # fmt: skip
