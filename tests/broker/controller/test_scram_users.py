"""SCRAM credentials: what is stored, what is refused, and that snapshots contain them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.controller.scene import Scene

from ballast_broker.controller.commands.scram import alter_user_scram_credentials
from ballast_broker.metadata.delta import MetadataDelta
from ballast_broker.metadata.image import EMPTY_IMAGE
from ballast_broker.metadata.records import decode_record, encode_record
from ballast_broker.metadata.snapshot import image_records
from ballast_broker.security.scram import Credential, credential_of
from ballast_wire.errors import ErrorCode
from ballast_wire.messages import message

SHA_256, SHA_512 = 1, 2
Request = message("AlterUserScramCredentialsRequest")
OK = (ErrorCode.NONE, None)


def made(name: str, mechanism: int = SHA_256, **how: Any) -> Any:
    fields = {"iterations": 4096, "salt": b"salt", "salted_password": b"salted"} | how
    return Request.ScramCredentialUpsertion(name=name, mechanism=mechanism, **fields)


def gone(name: str, mechanism: int = SHA_256) -> Any:
    return Request.ScramCredentialDeletion(name=name, mechanism=mechanism)


def change(scene: Scene, *changes: Any) -> dict[str, tuple[ErrorCode, str | None]]:
    deletions = [each for each in changes if isinstance(each, Request.ScramCredentialDeletion)]
    upsertions = [each for each in changes if each not in deletions]
    answer = scene.run(alter_user_scram_credentials, Request(deletions=deletions, upsertions=upsertions))
    return {each.user: (ErrorCode(each.error_code), each.error_message) for each in answer.results}


def kept(scene: Scene, name: str, mechanism: int) -> Credential | None:
    found = scene.image.security.scram_credentials.get((name, mechanism))
    return None if found is None else Credential(found.salt, found.iterations, found.stored_key, found.server_key)


@pytest.mark.spec("CLI-06")
def test_what_is_kept_is_no_password() -> None:
    scene = Scene()
    assert change(scene, made("ann"), made("ann", SHA_512, iterations=8192), made("bob")) == {"ann": OK, "bob": OK}
    assert kept(scene, "ann", SHA_256) == credential_of("SCRAM-SHA-256", b"salted", b"salt", 4096)
    assert kept(scene, "ann", SHA_512) == credential_of("SCRAM-SHA-512", b"salted", b"salt", 8192)
    assert b"salted" not in b"".join(encode_record(each) for each in scene.image.security.scram_credentials.values())
    assert change(scene, made("ann", salt=b"other"), gone("bob")) == {"ann": OK, "bob": OK}
    assert kept(scene, "ann", SHA_256) == credential_of("SCRAM-SHA-256", b"salted", b"other", 4096)
    assert kept(scene, "bob", SHA_256) is None


@pytest.mark.spec("CLI-06")
def test_a_snapshot_has_them() -> None:
    scene = Scene()
    change(scene, made("ann"), made("bob", SHA_512))
    delta = MetadataDelta(EMPTY_IMAGE)
    for each in image_records(scene.image):
        delta.replay(decode_record(encode_record(each)))
    read = delta.apply().security.scram_credentials
    assert {key: encode_record(each) for key, each in read.items()} == {
        key: encode_record(each) for key, each in scene.image.security.scram_credentials.items()
    }
    assert sorted(read) == [("ann", SHA_256), ("bob", SHA_512)]


@pytest.mark.spec("CLI-06")
@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ([made("")], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ([made("x", 0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([made("x", iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        ([made("x", iterations=16_385)], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        ([made("x", salt=b"")], ErrorCode.UNACCEPTABLE_CREDENTIAL, "must not be empty"),
        ([made("x", salted_password=b"")], ErrorCode.UNACCEPTABLE_CREDENTIAL, "must not be empty"),
        ([gone("x")], ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"),
        ([made("x"), made("x")], ErrorCode.DUPLICATE_RESOURCE, "cannot be altered twice in the same request"),
        ([made("x"), gone("x")], ErrorCode.DUPLICATE_RESOURCE, "cannot be altered twice in the same request"),
    ],
)
def test_what_is_refused_of_a_user_is_refused_whole_and_others_are_not(
    changes: list[Any], code: ErrorCode, says: str
) -> None:
    scene = Scene()
    user = changes[0].name
    answers = change(scene, *changes, made(user or "", SHA_512), made("bob"))
    assert answers["bob"] == OK
    assert answers[user][0] is code
    assert says in str(answers[user][1])
    assert sorted(scene.image.security.scram_credentials) == [("bob", SHA_256)]
