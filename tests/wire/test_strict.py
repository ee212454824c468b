"""What a stranger's bytes may not do to whoever reads them: cost more than they weigh, or mean what they do not say."""

from __future__ import annotations

import time

import pytest

from ballast_wire.fast.reader import MOST_ENTRIES, MalformedRequest
from ballast_wire.fast.writer import unsigned_varint
from ballast_wire.messages import message

pytestmark = pytest.mark.spec("CLI-08")

Heartbeat, Metadata, Describe = (message(f"{name}Request") for name in ("Heartbeat", "Metadata", "DescribeGroups"))
Sync, Cluster = message("SyncGroupRequest"), message("DescribeClusterRequest")
Pages = message("DescribeTopicPartitionsRequest")
MEGABYTE = 1 << 20
A_SECOND_OF_WORK_S = 5.0  # on a machine that is busy otherwise; what is meant takes minutes


def test_a_length_has_five_bytes_at_most() -> None:
    began = time.thread_time()
    with pytest.raises(MalformedRequest, match="varint"):
        Heartbeat.decode(b"\xff" * MEGABYTE + b"\x01", version=4)
    with pytest.raises(MalformedRequest, match="varint"):
        Describe.decode(b"\x80" * 5 + b"\x02", version=5)
    assert time.thread_time() - began < A_SECOND_OF_WORK_S


@pytest.mark.parametrize("count", [3, 200, 40_000])
def test_lengths_of_every_size_are_read(count: int) -> None:
    data = bytes(Describe(groups=["g"] * count, include_authorized_operations=True).encode(version=5))
    found = Describe.decode(data, version=5)
    assert found.groups == ["g"] * count
    assert found.include_authorized_operations is True


@pytest.mark.parametrize("version", [0, 1, 9, 12])
def test_a_text_that_is_cut_short_is_no_shorter_text(version: int) -> None:
    data = bytes(Metadata(topics=[Metadata.MetadataRequestTopic(name="orders")]).encode(version=version))
    end = data.index(b"orders") + len(b"orders")
    for cut in range(1, 6):
        with pytest.raises(MalformedRequest, match="past the end"):
            Metadata.decode(data[: end - cut], version=version)


@pytest.mark.parametrize("version", [0, 4])
def test_bytes_that_are_cut_short_are_no_fewer_bytes(version: int) -> None:
    assignment = Sync.SyncGroupRequestAssignment(member_id="m", assignment=b"assigned")
    data = bytes(Sync(group_id="g", generation_id=1, member_id="m", assignments=[assignment]).encode(version=version))
    end = data.index(b"assigned") + len(b"assigned")
    assert Sync.decode(data, version=version).assignments[0].assignment == b"assigned"
    with pytest.raises(MalformedRequest, match="past the end"):
        Sync.decode(data[: end - 1], version=version)


def test_a_text_is_no_longer_than_all_versions_can_say_it() -> None:
    longest = "g" * 32_767
    data = bytes(Describe(groups=[longest], include_authorized_operations=False).encode(version=5))
    assert Describe.decode(data, version=5).groups == [longest]
    data = bytes(Describe(groups=[longest + "g"], include_authorized_operations=False).encode(version=5))
    with pytest.raises(MalformedRequest, match="longer than 32767"):
        Describe.decode(data, version=5)


def test_tags_that_nobody_knows_cost_what_they_weigh() -> None:
    tagged = b"\x02t" + b"\x01\x05\x02xy"  # a name; one tag, its number and what it holds
    rest = b"\x00\x00\x00\x07\xff\x00"  # the limit, no cursor, no tags
    data = unsigned_varint(MOST_ENTRIES + 1) + tagged * MOST_ENTRIES + rest
    began = time.thread_time()
    found = Pages.decode(data, version=0)
    assert time.thread_time() - began < A_SECOND_OF_WORK_S
    assert len(found.topics) == MOST_ENTRIES
    assert {topic.name for topic in found.topics} == {"t"}
    assert found.response_partition_limit == 7


@pytest.mark.parametrize("tags", [b"\x01\x05\x05xy", b"\x02\x05\x02xy", b"\x01" + b"\xff" * 6])
def test_tags_end_where_the_message_does(tags: bytes) -> None:
    with pytest.raises((MalformedRequest, IndexError)):
        Cluster.decode(b"\x00\x01\x00" + tags, version=2)


def test_tags_that_are_known_are_read() -> None:
    kind = message("FetchRequest")
    data = bytes(kind(cluster_id="here", max_wait_ms=5, topics=[], forgotten_topics_data=[]).encode(version=12))
    found = kind.decode(data, version=12)
    assert found.cluster_id == "here"
    assert found.max_wait_ms == 5


@pytest.mark.spec("CLI-10")
@pytest.mark.parametrize("version", [0, 4])
def test_a_text_that_is_no_utf_8_is_read_as_java_reads_it(version: int) -> None:
    """Of clients whose names are Latin-1, as librdkafka passes them on."""
    data = bytes(Heartbeat(group_id="M?ller", generation_id=1, member_id="m").encode(version=version))
    assert Heartbeat.decode(data.replace(b"?", b"\xfc"), version=version).group_id == "M\ufffdller"


@pytest.mark.parametrize("version", [0, 4])
def test_a_text_that_is_too_long_once_it_is_replaced_is_refused(version: int) -> None:
    texts = {size: b"?" * size for size in (8_191, 10_922, 10_923, 32_767)}
    for size, text in texts.items():
        data = bytes(Heartbeat(group_id=text.decode(), generation_id=1, member_id="m").encode(version=version))
        spoilt = data.replace(text, b"\xfc" * size)
        if size * 3 > 32_767:
            with pytest.raises(MalformedRequest, match="text"):
                Heartbeat.decode(spoilt, version=version)
        else:
            assert Heartbeat.decode(spoilt, version=version).group_id == "\ufffd" * size
        assert Heartbeat.decode(data, version=version).group_id == text.decode()
