"""Show brokers and volumes: fill, leaders, under-replicated partitions, moves.

With --bootstrap it works for any Kafka cluster. Without, it shows the
KafkaClusters of the current kubeconfig.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ballast_cli import CommandError, command_config
from ballast_cli.arguments import addresses
from ballast_cli.kube_api import NOT_FOUND, KubeApi, Refused
from ballast_cli.reach import require_listener

if TYPE_CHECKING:
    from ballast_operator.kafka_client import ConnectionSettings, KafkaConnection
    from ballast_operator.model.kafka import KafkaView

WATCH_SECONDS = 2.0
REQUEST_TIMEOUT_MS = 5_000  # a person waits
OTHERWISE = "Or specify a broker with --bootstrap HOST:PORT."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bootstrap", type=addresses, metavar="HOST:PORT", help="a broker, or several separated by commas"
    )
    command_config.add_argument(parser)
    parser.add_argument("--watch", action="store_true", help="refresh every two seconds until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per cluster and refresh")


def run(args: argparse.Namespace) -> int:
    from ballast_cli.picture import draw, summary

    settings = None
    if args.bootstrap is not None:
        settings = command_config.connection(args)
    elif args.command_config is not None:
        raise CommandError("--command-config needs --bootstrap HOST:PORT.")
    while True:
        began = time.monotonic()
        pages, troubles = _looks(settings)
        # With --watch, keep going: the user wants to see it come back.
        if troubles and not pages and not args.watch:
            raise CommandError("; ".join(troubles))
        if args.json:
            for view in pages:
                print(json.dumps(summary(view)), flush=True)
            for trouble in troubles:
                print(trouble, file=sys.stderr, flush=True)
        else:
            text = "\n".join([*(draw(view) + "\n" for view in pages), *troubles])
            if args.watch and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
                text = "\x1b[2J\x1b[H" + fitted(text, shutil.get_terminal_size())
            print(text, flush=True)
        if not args.watch:
            return 1 if troubles else 0
        time.sleep(max(0.1, WATCH_SECONDS - (time.monotonic() - began)))


def fitted(text: str, size: os.terminal_size) -> str:
    """Cut the text to the terminal's size: longer lines would wrap, and a longer page scroll its top away."""
    lines = [line[: size.columns] for line in text.splitlines()]
    room = size.lines - 1  # the last one is the cursor's
    if len(lines) > room:
        lines[max(0, room - 1) :] = [f"... {len(lines) - room + 1} lines more"[: size.columns]]
    return "\n".join(lines)


def _looks(settings: ConnectionSettings | None) -> tuple[list[KafkaView], list[str]]:
    """The views of all clusters that could be observed, and the errors of the others."""
    pages: list[KafkaView] = []
    troubles: list[str] = []
    try:
        for target, body in _targets(settings):
            try:
                if body is not None and not target.bootstrap_servers:
                    raise CommandError(_without_address(body))
                pages.append(_look(target, body))
                if pages[-1].controller < 0:
                    troubles.append(f"{target.bootstrap_servers}: the controller does not answer; moves are unknown")
            except CommandError as error:
                troubles.append(str(error))
    except CommandError as error:
        troubles.append(str(error))
    return pages, troubles


def _look(settings: ConnectionSettings, body: Mapping[str, Any] | None) -> KafkaView:
    require_listener(settings.bootstrap_servers)  # before the event loop runs, which would delay Ctrl-C
    return asyncio.run(_view_of(settings, body))


async def _view_of(settings: ConnectionSettings, body: Mapping[str, Any] | None) -> KafkaView:
    from ballast_operator.kafka_client import KafkaConnection, KafkaForbiddenError, KafkaUnavailableError
    from ballast_operator.model.cluster import read_cluster
    from ballast_operator.observe import observe_brokers, observe_listed, observe_ongoing
    from ballast_operator.plan.claimed import as_claimed

    kafka = KafkaConnection(replace(settings, request_timeout_ms=REQUEST_TIMEOUT_MS))
    try:
        view = await _observe_contents(kafka, await observe_listed(kafka))
        try:
            controller = (await observe_brokers(kafka)).controller
            view = replace(view, controller=controller, ongoing=await observe_ongoing(kafka))
        except KafkaForbiddenError:
            raise
        except KafkaUnavailableError:  # the controller hangs, or there is none
            view = replace(view, controller=-1)
    except KafkaForbiddenError as error:
        raise CommandError(
            f"not authorized by {settings.bootstrap_servers}: {error} This needs DESCRIBE on the cluster."
        ) from error
    except KafkaUnavailableError as error:
        raise CommandError(f"{settings.bootstrap_servers} does not answer: {error}") from error
    finally:
        await kafka.close()
    view = view.with_absent()
    return as_claimed(read_cluster(body), view) if body is not None else view


async def observe_cluster(kafka: KafkaConnection) -> KafkaView:
    """Observe everything that the picture shows."""
    from ballast_operator.observe import observe_brokers, observe_ongoing

    view = await _observe_contents(kafka, await observe_brokers(kafka))
    return replace(view, ongoing=await observe_ongoing(kafka)).with_absent()


async def _observe_contents(kafka: KafkaConnection, view: KafkaView) -> KafkaView:
    from ballast_operator.observe import observe_directories, observe_topics

    topics, missing, errors = await observe_topics(kafka, None)
    online = [broker.id for broker in view.brokers.values() if broker.online]
    directories, logs, described = await observe_directories(kafka, online)
    return replace(
        view, topics=topics, missing=missing, topic_errors=errors, directories=directories, logs=logs,
        described=described,
    )  # fmt: skip


def _targets(settings: ConnectionSettings | None) -> list[tuple[ConnectionSettings, Mapping[str, Any] | None]]:
    """How to reach each cluster to show (the address is empty if not known yet), and its KafkaCluster, if any."""
    if settings is not None:
        return [(settings, None)]
    from ballast_operator.kafka_client import ConnectionSettings

    api = _api()
    try:
        bodies = api.call("GET", f"/apis/ballast.dev/v1alpha1/namespaces/{api.namespace}/kafkaclusters")["items"]
    except CommandError as error:
        unknown = isinstance(error, Refused) and error.code == NOT_FOUND
        said = f"the Kubernetes API at {api.server.geturl()} does not know KafkaClusters." if unknown else str(error)
        raise CommandError(f"{said} {OTHERWISE}") from error
    if not bodies:
        raise CommandError(f"there is no KafkaCluster in the namespace {api.namespace}. {OTHERWISE}")
    return [(ConnectionSettings(body.get("status", {}).get("bootstrapServers", "")), body) for body in bodies]


def _api() -> KubeApi:
    try:
        return KubeApi.found()
    except CommandError as error:
        between = " " if str(error).endswith(".") else "\n"  # it may end with a command to type
        raise CommandError(f"{error}{between}{OTHERWISE}") from error


def _without_address(body: Mapping[str, Any]) -> str:
    conditions = body.get("status", {}).get("conditions", ())
    said = [condition["message"] for condition in conditions if condition["type"] == "Ready"]
    why = said[0] if said else "no operator has processed it yet."
    return f"KafkaCluster {body['metadata']['name']} has no address yet: {why} {OTHERWISE}"
