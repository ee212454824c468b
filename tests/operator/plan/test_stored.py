"""What is kept in ConfigMaps is read back exactly, or refused."""

import base64
import gzip
from collections.abc import Callable

import pytest
from tests.operator.making import move

from ballast_operator.plan import stored
from ballast_operator.plan.stored import CHUNK_BYTES, KEY, MOST_BYTES, StoredPlanError, decode, encode, keep
from ballast_planner import Plan, Unplaced

PLAN = keep(
    Plan(
        tuple(move(((0, "/a"),), ((1, "/b"),), partition=index, wave=index % 3, network=index) for index in range(50)),
        unplaced=(Unplaced("orders", 9, 1, "no room"),),
    )
)


@pytest.mark.spec("OPR-30")
def test_a_plan_comes_back_as_it_was() -> None:
    assert decode(encode(PLAN), PLAN.hash) == PLAN


@pytest.mark.spec("OPR-32")
def test_moves_that_were_changed_are_refused() -> None:
    kept = encode(PLAN)
    text = gzip.decompress(base64.b64decode(kept[0]["binaryData"][KEY])).replace(b'"/b"', b'"/c"')
    forged = [{"binaryData": {KEY: base64.b64encode(gzip.compress(text)).decode()}}]
    with pytest.raises(StoredPlanError, match="hash"):
        decode(forged, PLAN.hash)
    with pytest.raises(StoredPlanError, match="cannot be read"):
        decode([], PLAN.hash)


WRITTEN: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "no gzip": lambda: b"no gzip",
    "cut off": lambda: gzip.compress(b"{}")[:-4],
    "a list": lambda: gzip.compress(b"[]"),
    "lists in lists": lambda: gzip.compress(b"[" * 100_000),
    "a move that is none": lambda: gzip.compress(b'{"moves":[1],"unplaced":[]}'),
    "far too much": lambda: gzip.compress(bytes(MOST_BYTES + 1)),
}


@pytest.mark.spec("OPR-32")
@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
def test_what_somebody_wrote_in_its_place_is_refused(written: Callable[[], bytes]) -> None:
    with pytest.raises(StoredPlanError, match="cannot be read"):
        decode([{"binaryData": {KEY: base64.b64encode(written()).decode()}}], PLAN.hash)


@pytest.mark.spec("OPR-32")
def test_each_byte_that_somebody_changed_is_refused() -> None:
    packed = base64.b64decode(encode(PLAN)[0]["binaryData"][KEY])
    for at in range(10, len(packed)):  # behind the header, which says nothing about the plan
        changed = packed[:at] + bytes([packed[at] ^ 0xFF]) + packed[at + 1 :]
        with pytest.raises(StoredPlanError):
            decode([{"binaryData": {KEY: base64.b64encode(changed).decode()}}], PLAN.hash)


@pytest.mark.spec("OPR-34")
def test_a_plan_that_could_not_be_read_back_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MOST_BYTES", 1_000)
    with pytest.raises(StoredPlanError, match="50 moves are too many"):
        encode(PLAN)


@pytest.mark.spec("OPR-34")
def test_a_plan_of_a_hundred_thousand_partitions_fits_into_config_maps() -> None:
    # A quarter of it, and so a quarter of the twenty that are meant.
    moves = tuple(
        move(
            ((n % 80, f"/volumes/{n % 7}"),),
            ((n % 79, f"/volumes/{n % 5}"),),
            partition=n % 1000,
            name=f"topic-{n // 1000}",
        )
        for n in range(25_000)
    )
    chunks = encode(keep(Plan(moves)))
    assert len(chunks) <= 5
    assert all(len(base64.b64decode(chunk["binaryData"][KEY])) <= CHUNK_BYTES for chunk in chunks)
