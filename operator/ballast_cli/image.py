"""Build the container image of brokers and operator, or that of the Spark job.

Uses docker or buildah if one of them works. Otherwise root on Debian or Ubuntu
can build the same contents on a debootstrap base, as an archive for `ctr images
import`, `docker load` or `podman load`. The broker's hot modules are compiled
first, which takes a minute or two. Prints the size of the image with and
without its base, and how long a broker in it takes to start.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ballast_cli import CommandError
from ballast_cli.image_archive import write_archive
from ballast_cli.image_base import Base, BaseError, cache_folder, debian_base, missing_for_base
from ballast_cli.image_contents import Flavour, content_key, missing_for_contents, stage
from ballast_cli.image_start import StartError, broker_start_seconds
from ballast_cli.places import ROOT

WAYS = ("docker", "buildah", "archive")
MEGABYTE = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spark", action="store_true", help="build the image of the Spark job")
    parser.add_argument("--name", type=named, help="name of the image (default: localhost/ballast:VERSION)")
    parser.add_argument("--base", metavar="IMAGE", help="docker, buildah: base image (default: as in the Dockerfile)")
    parser.add_argument(
        "--with", dest="way", choices=WAYS, help="how to build (default: the first of these that works)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="archive: file to write (default: in the cache)")


def named(text: str) -> str:
    """Reject an empty name, as from an unset variable: `run` would take it for the default."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


def run(args: argparse.Namespace) -> int:
    flavour = Flavour.SPARK if args.spark else Flavour.BROKER
    name = tagged(args.name or f"localhost/{flavour.image}", flavour)
    way = args.way or choose_way()
    if way != "archive":
        if args.out:
            raise CommandError(f"--out is for --with archive; {way} keeps images itself.")
        return build_with(way, flavour, name, args.base)
    if args.base:
        raise CommandError("--base is for docker and buildah; an archive's base is made by debootstrap.")
    if args.out and (args.out.is_dir() or not args.out.parent.is_dir()):
        raise CommandError(f"--out {args.out} is no file in a folder that is there.")
    missing = missing_for_base() + missing_for_contents(flavour)
    if missing:
        raise CommandError(f"without docker and buildah this needs {'; '.join(missing)}.")
    report(build_archive(flavour, name, args.out), flavour)
    return 0


def tagged(name: str, flavour: Flavour) -> str:
    """Add the version as the tag if there is none: in an archive, a name without a tag names no image."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:{flavour.version()}"


# ---- docker and buildah


def works(way: str) -> bool:
    """Whether the program is installed and can build: docker without its daemon cannot."""
    probe = [way, "info"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def choose_way() -> str:
    return next((way for way in ("docker", "buildah") if works(way)), "archive")


def build_with(way: str, flavour: Flavour, name: str, base: str | None) -> int:
    command = [way, "build", "--file", str(flavour.dockerfile), "--tag", name]
    if base:
        command += ["--build-arg", f"BASE={base}"]
    began = time.monotonic()
    code = subprocess.run([*command, str(ROOT)], check=False).returncode
    if code == 0:
        print(f"{name} built by {way} in {time.monotonic() - began:.0f} s; `{way} images` tells its size")
    return code


# ---- without them


class Built:
    """A finished archive, with the base and layers it was made of."""

    def __init__(self, name: str, path: Path, base: Path, layers: list[Path]) -> None:
        self.name = name
        self.path = path
        self.base = base
        self.layers = layers

    @property
    def own_bytes(self) -> int:
        """The size of the image without its base."""
        return sum(layer.stat().st_size for layer in self.layers)


def build_layers(flavour: Flavour, say: Callable[[str], None]) -> tuple[Base, list[Path]]:
    """The base and the layers on top of it, which take long to build and stay in the cache."""
    folder = _archives()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        base = debian_base(flavour.debian_packages, say)
    except BaseError as error:
        raise CommandError(str(error)) from None
    staged = stage(flavour, folder, say)
    return base, [staged.packages, staged.sources]


def _archives() -> Path:
    return cache_folder() / "images"


def build_archive(flavour: Flavour, name: str, out: Path | None = None, say: Callable[[str], None] = print) -> Built:
    """The archive of the current sources; one that was built from the same sources is reused."""
    base, layers = build_layers(flavour, say)
    path = out or _archives() / f"{flavour.image}-{content_key(flavour)}-{name.rpartition(':')[2]}.tar"
    if out or not path.exists():
        write_archive(path, name, [base.layer, *layers], flavour.settings(platform.machine()))
    return Built(name, path, base.folder, layers)


def report(built: Built, flavour: Flavour) -> None:
    whole = built.path.stat().st_size / MEGABYTE
    print(f"{built.name}: {whole:.0f} MB, {built.own_bytes / MEGABYTE:.0f} MB of it beyond its base")
    if flavour is Flavour.BROKER:
        try:
            seconds = broker_start_seconds(built.base, built.layers)
            print(f"a broker in it answers {seconds:.2f} s after its start")
        except StartError as error:
            print(f"how long a broker takes to start in it was not measured: {error}", file=sys.stderr)
    print(f"{built.path}\n  ctr --namespace k8s.io images import {built.path}\n  docker load --input {built.path}")
