from collections.abc import Iterable, Sequence
from typing import final

class CreditOverflow(ValueError):  # noqa: N818 - names the event, as the ledger does
    """Credit would rise above the selected maximum (P10-09, P10-16); the balance is unchanged."""

@final
class Credit:
    """Credit balance of one subscription, in events and in bytes.

    All values are unsigned 64-bit; anything else raises ``OverflowError``. Initial credit above a maximum raises
    ``CreditOverflow``.
    """

    def __init__(self, max_count: int, max_bytes: int, count: int = 0, nbytes: int = 0) -> None: ...
    @property
    def max_count(self) -> int:
        """Selected maximum of events (P3-35)."""
    @property
    def max_bytes(self) -> int:
        """Selected maximum of bytes (P3-35)."""
    @property
    def count(self) -> int:
        """Events that may still be sent."""
    @property
    def nbytes(self) -> int:
        """Bytes that may still be sent; an event costs its whole outer length, 4 + ``length`` (P10-06)."""
    def add(self, count: int, nbytes: int) -> None:
        """Checked addition (P10-09). ``CreditOverflow`` when either balance would pass its maximum; nothing changes."""
    def spend(self, nbytes: int, count: int = 1) -> bool:
        """Debit ``count`` events of ``nbytes`` in all if both balances suffice (P10-07), else nothing: ``False``."""
    def clear(self) -> None:
        """Both balances to zero."""

@final
class Quota:
    """Counters of one level below its parents, one per resource index.

    ``limits`` gives the limit of each resource; a parent counts the same resources in the same order. A charge is
    made on this level and on every parent, or nowhere (P3-48); nothing that was granted is ever taken back by
    another charge (P3-49). An index outside the list raises ``IndexError``.
    """

    def __init__(self, limits: Sequence[int], parent: Quota | None = None) -> None: ...
    def charge(self, resource: int, amount: int = 1) -> bool:
        """``False`` when this level or a parent would pass its limit; then nothing changed anywhere."""
    def charge_many(self, amounts: Iterable[tuple[int, int]]) -> bool:
        """Charge several ``(resource, amount)`` pairs, all or none; pairs of one resource add up."""
    def release(self, resource: int, amount: int = 1) -> None:
        """Give back what this very level charged. ``ValueError`` when that is less than ``amount``; nothing changes."""
    def release_all(self) -> None:
        """Give back everything that this very level charged, at this level and at its parents."""
    def used(self, resource: int) -> int:
        """Charged by this level and all levels below it."""
    def limit(self, resource: int) -> int:
        """The limit of this level."""
