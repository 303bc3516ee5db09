"""How many handlers run at once: so many in all, and so many for one caller, so that none of them starves the rest."""

from __future__ import annotations


class Slots:
    """Places for running handlers. Counted per caller, by its lifecycle in dot-form; a caller without any is
    not remembered."""

    def __init__(self, total: int, per_caller: int) -> None:
        self.used = 0
        self._total, self._per_caller = total, per_caller
        self._by_caller: dict[str, int] = {}

    def take(self, caller: str) -> bool:
        """A place, if there is one for this caller."""
        held = self._by_caller.get(caller, 0)
        if self.used >= self._total or held >= self._per_caller:
            return False
        self.used += 1
        self._by_caller[caller] = held + 1
        return True

    def give_back(self, caller: str) -> None:
        """A handler of this caller has ended."""
        self.used -= 1
        held = self._by_caller[caller] - 1
        if held:
            self._by_caller[caller] = held
        else:
            del self._by_caller[caller]
