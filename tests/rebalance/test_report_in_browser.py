"""The report as people get it: on a phone, on a screen, in the dark, and read aloud."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.rebalance.browser import Page, chromium
from tests.rebalance.skewed import brokers_of, directories_of, skewed_cluster

from ballast_planner import Broker, ClusterLoad, Directory, PlanOptions, Replica, plan_balance, plan_hash
from ballast_rebalance import report

pytestmark = [pytest.mark.chromium, pytest.mark.timeout(200), pytest.mark.spec("REB-09")]
PHONE, SCREEN = (360, 740), (1280, 900)
COMMAND = 'kubectl -n default patch reassignment demo-rebalance --type merge -p \'{"spec":{"approvedPlan":"0123"}}\''
# Text that is drawn smaller than this cannot be read; what is hidden has no height.
SMALLEST_TEXT_PX = 10
TEXT_HEIGHTS = """
[...document.querySelectorAll('svg text, p, th, td, dt, dd, li, pre, h1, h2, caption')]
  .map(e => [e.textContent.slice(0, 40), e.tagName === 'text' ? e.getBoundingClientRect().height
    : parseFloat(getComputedStyle(e).fontSize)])
  .filter(([text, height]) => text.trim() && height > 0 && height < %d)
"""
CLIPPED = """
[...document.querySelectorAll('p, dt, dd, pre, h1, h2')]
  .filter(e => !e.closest('.scroll, .across') && e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.textContent.slice(0, 40))
"""


# Labels of the picture that hang over its edge, and tables whose columns do.
CUT_OFF = """
[...document.querySelectorAll('svg.flow text')]
  .filter(e => e.getBBox().x < 0 || e.getBBox().x + e.getBBox().width > e.ownerSVGElement.width.baseVal.value)
  .concat([...document.querySelectorAll('.wide')].filter(e => e.offsetWidth > e.parentElement.offsetWidth))
  .map(e => e.textContent.slice(0, 40))
"""


def page_of(tmp_path: Path) -> tuple[str, str]:
    """(address, plan hash) of the report on a skewed cluster."""
    found = skewed_cluster()
    replicas = [Replica(r.topic, r.partition, r.broker, r.log_dir, r.size, r.position == 0, r.position) for r in found]
    load = ClusterLoad.from_rows(brokers_of(found), directories_of(found), replicas)
    plan = plan_balance(
        load, PlanOptions(intra_broker_bytes_per_second=50 << 20, inter_broker_bytes_per_second=50 << 20)
    )
    file = tmp_path / "report.html"
    text = report.render(load, plan, "demo", 1_700_000_000, COMMAND, ["traffic is not known: it is not levelled"])
    file.write_text(text, encoding="utf-8")
    return file.as_uri(), plan_hash(plan)


def in_browser(tmp_path: Path, story: Callable[[Page], Awaitable[None]]) -> None:
    async def run() -> None:
        async with chromium(tmp_path / "profile") as page:
            await story(page)

    asyncio.run(run())


@pytest.mark.parametrize(("size", "dark"), [(PHONE, False), (PHONE, True), (SCREEN, False)])
def test_it_fits_and_can_be_read(tmp_path: Path, size: tuple[int, int], dark: bool) -> None:
    uri, _ = page_of(tmp_path)
    # For eyes: BALLAST_SCREENSHOTS names a directory that outlives the test.
    kept = Path(os.environ.get("BALLAST_SCREENSHOTS", tmp_path))
    shot = kept / f"report-{size[0]}{'-dark' if dark else ''}.png"

    shots: list[bytes] = []

    async def story(page: Page) -> None:
        await page.open(uri, *size, mobile=size is PHONE, dark=dark)
        assert await page.run("document.documentElement.scrollWidth") <= size[0], "nothing hangs over the edge"
        assert await page.run(CLIPPED) == []
        assert await page.run(TEXT_HEIGHTS % SMALLEST_TEXT_PX) == []
        background = await page.run("getComputedStyle(document.body).backgroundColor")
        assert (background != "rgb(255, 255, 255)") is dark
        shots.append(await page.screenshot())

    in_browser(tmp_path, story)
    shot.write_bytes(shots[0])
    assert shot.stat().st_size > 10_000


def test_a_screen_reader_is_told_everything(tmp_path: Path) -> None:
    uri, digest = page_of(tmp_path)

    async def story(page: Page) -> None:
        await page.open(uri, *SCREEN, mobile=False)
        told = await page.accessible()
        names = {role: [name for found, name in told if found == role] for role, _ in told}
        assert names["heading"] == [
            "Rebalance proposal for demo", "What it brings and costs", "Approve", "What was not known",
            "Directories before and after", "Where the bytes go", "Moves",
        ]  # fmt: skip
        assert names["table"][0] == "Fill levels"
        assert all(names["table"]), "every table has a name"
        assert all(names["region"]), "every region has a name"
        assert all(name.startswith("Flow of bytes: ") for name in names["image"])
        assert "Fullest directory" in names["rowheader"]
        assert "Before" in names["columnheader"]
        texts = " ".join(name for role, name in told if role == "StaticText")
        assert digest in texts
        assert COMMAND in texts

    in_browser(tmp_path, story)


def test_the_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    uri, _ = page_of(tmp_path)

    async def story(page: Page) -> None:
        await page.open(uri, *SCREEN, mobile=False)
        assert await page.run("performance.getEntriesByType('resource').length") == 0
        assert await page.run("document.scripts.length") == 0

    in_browser(tmp_path, story)


def test_long_names_break_and_are_shortened_and_topics_are_no_html(tmp_path: Path) -> None:
    """A Kafka topic has up to 249 letters without a blank, and a disk may be mounted deep."""
    paths = [f"/var/lib/kubernetes/volumes/ballast/disk-{disk}/data" for disk in range(12)]
    topic = "<b>orders</b>" + "x" * 236
    rows = [Replica(topic, p, 0, paths[0], 10, True) for p in range(60)]
    disks = [Directory(0, path, 800, 600 if path == paths[0] else 0) for path in paths]
    load = ClusterLoad.from_rows([Broker(0)], disks, rows)
    file = tmp_path / "report.html"
    page = report.render(load, plan_balance(load), "demo", 1_700_000_000, COMMAND)
    file.write_text(page, encoding="utf-8")

    async def story(page: Page) -> None:
        await page.open(file.as_uri(), *SCREEN, mobile=False)
        assert await page.run(CUT_OFF) == []
        assert await page.run("document.querySelectorAll('main b').length") == 0
        assert await page.run("document.documentElement.scrollWidth") <= SCREEN[0]
        column = await page.run("[...document.querySelectorAll('.fills .path')].map(e => e.textContent)")
        assert column == paths, "disk-2 before disk-10"

    in_browser(tmp_path, story)
