"""Config providers: properties files refer to secrets instead of containing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ballast_broker.config.broker import BrokerConfig, broker_config
from ballast_broker.config.properties_file import parse_properties
from ballast_broker.config_types import ConfigError

pytestmark = pytest.mark.spec("CLI-06", "CLI-13")
CLASSES = "org.apache.kafka.common.config.provider"
DIRECTORY = f"config.providers=dir\nconfig.providers.dir.class={CLASSES}.DirectoryConfigProvider\n"
FILE = f"config.providers=file\nconfig.providers.file.class={CLASSES}.FileConfigProvider\n"


def config(text: str) -> BrokerConfig:
    return broker_config(parse_properties(f"node.id=1\n{text}"))


def test_a_mounted_secret_is_read_where_the_file_refers_to_it(tmp_path: Path) -> None:
    (tmp_path / "secretKey").write_text("nobody reads this\n")
    found = config(f"{DIRECTORY}delegation.token.secret.key=${{dir:{tmp_path}:secretKey}}")
    assert found.delegation_token_secret == b"nobody reads this"
    assert found.warnings == ()


def test_several_values_of_another_file_stand_within_one(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("alice=wonder\nbob=build=er\n")
    users = f'user_alice="${{file:{tmp_path}/users:alice}}" user_bob="${{file:{tmp_path}/users:bob}}"'
    found = config(f"{FILE}broker.rack={users}")
    assert found.broker_rack == 'user_alice="wonder" user_bob="build=er"'


def test_what_no_provider_is_named_for_stays_as_it_is() -> None:
    assert config("broker.rack=${dir:/none:rack}").broker_rack == "${dir:/none:rack}"
    assert config(f"{DIRECTORY}broker.rack=${{other:/none:rack}}").broker_rack == "${other:/none:rack}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{DIRECTORY}broker.rack=${{dir:FOLDER:none}}", "broker.rack: cannot read FOLDER/none: No such file"),
        (f"{DIRECTORY}broker.rack=${{dir:FOLDER:../rack}}", "has to be the name of a file in FOLDER"),
        (f"{FILE}broker.rack=${{file:FOLDER/rack:none}}", "FOLDER/rack has no property none"),
        ("config.providers=dir", "there are org.apache.kafka.common.config.provider.DirectoryConfigProvider"),
        (f"{DIRECTORY}config.providers.dir.param.strange=1", "config.providers.dir.param.strange: there is no such"),
        (
            f"{DIRECTORY}config.providers.dir.param.allowed.paths=/etc/ballast\nbroker.rack=${{dir:FOLDER:rack}}",
            "FOLDER is not among the allowed paths of provider dir",
        ),
    ],
)
def test_what_is_not_there_is_refused_and_no_reference_is_taken_for_a_value(
    text: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "rack").write_text("one=a secret")
    with pytest.raises(ConfigError) as refused:
        config(text.replace("FOLDER", str(tmp_path)))
    assert told.replace("FOLDER", str(tmp_path)) in str(refused.value)
    assert "a secret" not in str(refused.value)


def test_an_allowed_path_allows_what_is_below_it(tmp_path: Path) -> None:
    (tmp_path / "rack").write_text("here")
    allowed = f"config.providers.dir.param.allowed.paths=/etc/ballast, {tmp_path.parent}\n"
    assert config(f"{DIRECTORY}{allowed}broker.rack=${{dir:{tmp_path}:rack}}").broker_rack == "here"
