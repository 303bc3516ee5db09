"""How often a bucket is read for callers who get it in pages."""

from __future__ import annotations

import pytest

from sidecar.base.clock import Now
from sidecar.rails.connection.kv import Entry
from sidecar.rails.names import Lifecycle, Principal
from sidecar.rails.planes.delivery.paging import KEPT_SECONDS, MOST_KEPT, Pages

pytestmark = pytest.mark.asyncio


def caller(number: int) -> Lifecycle:
    return Lifecycle(Principal("local", f"peer{number}"), "b" * 26)


class Bucket:
    """Says in its one key how often it was read."""

    def __init__(self) -> None:
        self.reads, self.now = 0, 100.0
        self.pages = Pages(self.read, lambda: Now(0.0, self.now))

    async def read(self) -> dict[str, Entry]:
        self.reads += 1
        return {"key": Entry("key", b"", self.reads, False, 0)}

    async def page(self, number: int, after: str) -> int:
        return (await self.pages.entries(caller(number), after))["key"].revision


@pytest.mark.req("C6-45", "C9-47")
async def test_the_pages_of_one_read_are_of_one_moment_and_each_read_is_of_its_own() -> None:
    bucket = Bucket()
    assert [await bucket.page(1, after) for after in ("", "a", "b")] == [1, 1, 1]
    assert await bucket.page(1, "") == 2, "a read begins when it is asked for"
    assert [await bucket.page(1, "a"), await bucket.page(2, "a")] == [2, 3], "nobody gets what another was shown"
    bucket.pages.ended(caller(1))
    assert await bucket.page(1, "c") == 4


async def test_what_is_kept_is_short_lived_and_little() -> None:
    bucket = Bucket()
    await bucket.page(1, "")
    bucket.now += KEPT_SECONDS
    assert await bucket.page(1, "a") == 2
    bucket.now += KEPT_SECONDS
    bucket.pages.expire()
    assert len(bucket.pages) == 0
    for number in range(MOST_KEPT + 1):
        await bucket.page(number, "")
    assert len(bucket.pages) == MOST_KEPT
    before = bucket.reads
    await bucket.page(MOST_KEPT, "a")
    assert bucket.reads == before
    await bucket.page(0, "a")
    assert bucket.reads == before + 1
