"""The merged read of a record: both halves with their revisions, and what may be concluded from the pair (C13.4-08).

Pure. Whoever reads fetches spec and status, and asks here; ``BEHIND`` says that the spec is older than the one that the
status was made by, and is to be read again (C13.4-10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from sidecar.base.strictjson import JsonValue

MAX_REREADS: Final = 8
"""How often a spec that is behind is read again before the read fails."""


class Pair(Enum):
    """What a pair of halves is good for."""

    BEHIND = "the spec is older than the one that the status observed: it is read again, and the pair never used"


BEHIND: Literal[Pair.BEHIND] = Pair.BEHIND


@dataclass(frozen=True, slots=True)
class Half:
    """One half of a record and the store revision of its key."""

    revision: int
    value: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Merged:
    """A record as it may be used. ``status`` is None before the first report; ``observed`` is the spec revision that
    the status was made by."""

    spec: Half | None
    status: Half | None

    @property
    def observed(self) -> int | None:
        return None if self.status is None else observed_of(self.status)

    @property
    def stale(self) -> bool:
        """The status was made by an earlier spec: valid, and behind (C13.4-09)."""
        observed = self.observed
        return self.spec is not None and observed is not None and observed < self.spec.revision

    def changed(self, spec: int, status: int) -> bool:
        """Whether a half stands at another revision than these (0: there was none)."""
        now = tuple(0 if half is None else half.revision for half in (self.spec, self.status))
        return now != (spec, status)

    def value(self) -> dict[str, JsonValue]:
        """The form of a reply: ``{spec?: {revision, value}, status?: {...}, observed?}``."""
        found: dict[str, JsonValue] = {}
        for name, half in (("spec", self.spec), ("status", self.status)):
            if half is not None:
                found[name] = {"revision": half.revision, "value": dict(half.value)}
        return found if self.observed is None else {**found, "observed": self.observed}


def merge(spec: Half | None, status: Half | None) -> Merged | Literal[Pair.BEHIND]:
    """The record of two halves that were read one after the other. A status whose spec is gone is of a registration
    that has ended: it is left out (C13.7-83)."""
    if spec is None:
        return Merged(None, None)
    observed = None if status is None else observed_of(status)
    if observed is not None and observed > spec.revision:
        return BEHIND
    return Merged(spec, status)


def observed_of(status: Half) -> int | None:
    """The spec revision that a status was made by; None when it names none."""
    observed = status.value.get("observedSpecRevision")
    return observed if type(observed) is int else None
