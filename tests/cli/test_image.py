"""Images without Docker: the archive, its layers, and what is in them."""

import hashlib
import json
import re
import tarfile
from pathlib import Path

import pytest

from ballast_cli import CommandError, image
from ballast_cli.image_archive import write_archive, write_layer
from ballast_cli.image_contents import PASSWD, Flavour, content_key, source_files, split_lock
from ballast_cli.places import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    place = tmp_path / "tree"
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "run").write_text("#!/bin/sh\n")
    (place / "bin" / "run").chmod(0o700)
    (place / "data").write_text("x")
    (place / "data").chmod(0o600)
    return place


def test_a_layer_belongs_to_root_can_be_read_by_all_and_has_no_dates(tree: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    write_layer(layer, tree, "/opt/x")
    with tarfile.open(layer) as archive:
        entries = {entry.name: entry for entry in archive}
    assert set(entries) == {"opt/x/bin", "opt/x/bin/run", "opt/x/data"}
    assert {(one.uid, one.gid, one.mtime, one.uname) for one in entries.values()} == {(0, 0, 0, "")}
    assert (entries["opt/x/bin/run"].mode, entries["opt/x/data"].mode) == (0o755, 0o644)


def test_an_archive_names_its_layers_by_their_contents_and_is_always_the_same(tree: Path, tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    write_layer(layer, tree, "/")
    settings = {"architecture": "amd64", "config": {"User": "1:1"}}
    for name in ("one.tar", "two.tar"):
        write_archive(tmp_path / name, "localhost/x:1", [layer], settings)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        files = {entry.name: found.read() for entry in archive if (found := archive.extractfile(entry))}
    (manifest,) = json.loads(files["manifest.json"])
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    assert manifest["RepoTags"] == ["localhost/x:1"]
    assert manifest["Layers"] == [f"{digest}.tar"]
    assert files[f"{digest}.tar"] == layer.read_bytes()
    config = json.loads(files[manifest["Config"]])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    assert config["config"]["User"] == "1:1"
    assert hashlib.sha256(files[manifest["Config"]]).hexdigest() == manifest["Config"].removesuffix(".json")


def test_nothing_half_written_is_left(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_archive(tmp_path / "image.tar", "x", [tmp_path / "missing.tar"], {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]


@pytest.mark.parametrize("flavour", Flavour)
def test_the_dockerfile_and_the_archive_have_the_same_in_them(flavour: Flavour) -> None:
    text = flavour.dockerfile.read_text()
    copied = {line.split()[1] for line in text.splitlines() if line.startswith("COPY ") and "/opt/ballast/" in line}
    compiler = {"broker-image/compile.py"} if flavour is Flavour.BROKER else set()
    assert copied - {"--from=packages"} == set(flavour.trees) | compiler
    assert ("--requirement /locks/compiler.lock" in text) is bool(compiler)
    for lock in flavour.locks:
        assert f"--requirement /locks/{lock}.lock" in text
    config = flavour.settings("x86_64")["config"]
    for setting in ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "HOME"):
        value = next(pair for pair in config["Env"] if pair.startswith(f"{setting}="))
        assert value in text
    assert f"USER {config['User']}" in text
    assert all(line in text for line in flavour.command.splitlines() if line.startswith("exec") or "case" in line)
    assert "ARG BASE=" in text
    assert (PASSWD.splitlines()[-1] in text) is (flavour is Flavour.SPARK)


@pytest.mark.parametrize("flavour", Flavour)
def test_docker_is_given_all_that_the_dockerfile_copies(flavour: Flavour) -> None:
    given = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", flavour.dockerfile.read_text(), re.M)
    assert copied
    for source in " ".join(copied).split():
        assert any(Path(source).is_relative_to(each) for each in given), source
        assert (ROOT / source).exists()


def test_what_is_published_without_a_wheel_is_told_apart_with_its_hashes() -> None:
    lock = (
        "# about\npyspark==4.3.0 \\\n    --hash=sha256:aa\npytz==1 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
    )
    from_sdist, from_wheel = split_lock(lock)
    assert from_sdist == "pyspark==4.3.0 \\\n    --hash=sha256:aa\n"
    assert from_wheel == "# about\npytz==1 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"
    locked = "".join((ROOT / "requirements" / f"{name}.lock").read_text() for name in Flavour.SPARK.locks)
    assert split_lock(locked)[0].startswith("pyspark==")


def test_another_source_is_another_image() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in source_files(Flavour.BROKER)]
    assert "broker-image/ballast_broker/app.py" in files
    assert not [name for name in files if "__pycache__" in name or name.startswith("tests/")]
    assert content_key(Flavour.BROKER) != content_key(Flavour.SPARK)


def test_a_docker_without_its_daemon_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("docker", "buildah"):
        (tmp_path / program).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert image.choose_way() == "archive"
    (tmp_path / "buildah").write_text("#!/bin/sh\nexit 0\n")
    assert image.choose_way() == "buildah"


def test_what_belongs_to_another_way_or_cannot_be_written_is_refused(tmp_path: Path) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    image.add_arguments(parser)
    with pytest.raises(CommandError, match="--base is for docker"):
        image.run(parser.parse_args(["--with", "archive", "--base", "x"]))
    with pytest.raises(CommandError, match="--out is for"):
        image.run(parser.parse_args(["--with", "docker", "--out", "x"]))
    for path in (tmp_path, tmp_path / "absent" / "x.tar"):
        with pytest.raises(CommandError, match="is no file in a folder that is there"):
            image.run(parser.parse_args(["--with", "archive", "--out", str(path)]))


def test_a_name_without_a_tag_gets_that_of_the_version() -> None:
    """It was taken for the tag, with its slashes, when the archive was named."""
    tag = Flavour.BROKER.version()
    assert image.tagged("registry:5000/team/ballast", Flavour.BROKER) == f"registry:5000/team/ballast:{tag}"
    assert image.tagged("ballast", Flavour.BROKER) == f"ballast:{tag}"
    assert image.tagged("registry:5000/ballast:mine", Flavour.BROKER) == "registry:5000/ballast:mine"
