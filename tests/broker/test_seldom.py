"""What clients can make a broker log as often as they like is logged seldom, and remembered in bounded memory."""

from __future__ import annotations

import pytest

from ballast_broker import seldom
from ballast_broker.seldom import Seldom


async def test_each_thing_is_due_once_and_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Seldom()
    assert [found.is_due(each) for each in ("a", "b", "a", "b")] == [True, True, False, False]
    monkeypatch.setattr(seldom, "TELL_AGAIN_S", 0.0)
    assert found.is_due("a")


async def test_of_ever_new_things_only_so_many_are_kept() -> None:
    found = Seldom()
    for number in range(seldom.MOST_KEPT):
        assert found.is_due(number)
    assert not found.is_due(0)
    assert found.is_due("one more")
    assert found.is_due(0), "all are forgotten at once"
    assert not found.is_due("one more")
