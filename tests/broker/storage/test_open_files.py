"""The limit of open files while readers hold some of them."""

from __future__ import annotations

from ballast_broker.storage.open_files import OpenFiles

LIMIT = 100
COUNT = 2_000


class Item:
    looked_at = 0

    def __init__(self) -> None:
        self.used_lately = self.held = self.is_open = True

    def close_if_idle(self) -> bool:
        Item.looked_at += 1
        self.is_open = self.held
        return not self.held

    def path(self) -> str:
        return ""

    def abandon(self) -> None:
        raise NotImplementedError


def test_files_that_are_all_held_are_not_gone_through_with_each_that_is_opened() -> None:
    """A fetch of thousands of partitions held them, and scanning them kept the broker busy for minutes."""
    files, items = OpenFiles(LIMIT), [Item() for _ in range(COUNT)]
    Item.looked_at = 0
    for item in items:
        files.opened(item)
    assert Item.looked_at < 20 * COUNT
    assert all(item.is_open for item in items)
    for item in items:
        item.held = False
    for _ in range(COUNT):
        files.opened(Item())
    assert not any(item.is_open for item in items)


def test_what_was_used_lately_is_closed_last() -> None:
    files, items = OpenFiles(3), [Item() for _ in range(3)]
    for item in items:
        item.held = False
        files.opened(item)
    files.opened(Item())
    assert [item.is_open for item in items] == [False, True, True]
    items[1].used_lately = True
    files.opened(Item())
    assert [item.is_open for item in items] == [False, True, False]
