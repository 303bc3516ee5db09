"""Plain-Python credit balances and quotas, written for clarity: the tests compare ``cext.credit`` with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

U64 = 2**64 - 1


class CreditOverflow(ValueError):  # noqa: N818 - as in cext
    """Credit would rise above the maximum."""


class Credit:
    def __init__(self, max_count: int, max_bytes: int, count: int = 0, nbytes: int = 0) -> None:
        self.max_count, self.max_bytes, self.count, self.nbytes = max_count, max_bytes, 0, 0
        self.add(count, nbytes)

    def add(self, count: int, nbytes: int) -> None:
        if self.count + count > self.max_count or self.nbytes + nbytes > self.max_bytes:
            raise CreditOverflow
        self.count += count
        self.nbytes += nbytes

    def spend(self, nbytes: int, count: int = 1) -> bool:
        if self.count < count or self.nbytes < nbytes:
            return False
        self.count -= count
        self.nbytes -= nbytes
        return True

    def clear(self) -> None:
        self.count = self.nbytes = 0


class Quota:
    def __init__(self, limits: Sequence[int], parent: Quota | None = None) -> None:
        self.limits, self.parent = list(limits), parent
        self.own = [0] * len(self.limits)
        self.children: list[Quota] = []
        if parent is not None:
            parent.children.append(self)

    def used(self, resource: int) -> int:
        return self.own[resource] + sum(child.used(resource) for child in self.children)

    def charge(self, resource: int, amount: int = 1) -> bool:
        return self.charge_many([(resource, amount)])

    def charge_many(self, amounts: Iterable[tuple[int, int]]) -> bool:
        before, pairs = list(self.own), list(amounts)
        for resource, amount in pairs:
            self.own[resource] += amount
        level: Quota | None = self
        while level is not None:
            if any(level.used(resource) > level.limits[resource] for resource, _ in pairs):
                self.own = before
                return False
            level = level.parent
        return True

    def release(self, resource: int, amount: int = 1) -> None:
        if amount > self.own[resource]:
            raise ValueError
        self.own[resource] -= amount

    def release_all(self) -> None:
        self.own = [0] * len(self.own)
