"""Which calls are repeated by themselves, and when (C13.7-09..14, C13.8-39). Pure: chance comes in.

A call is repeated when it is proved that it was not executed, or when its command is declared a ``read``. A ``write``
whose outcome is unknown never is, whatever its ``id`` (C13.7-13, -14).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from sidecar.rails.endpoint.codes import CallError, CallRefused, Code, Outcome
from sidecar.rails.endpoint.contracts import Contract
from sidecar.rails.names import headers

BASE_SECONDS: Final = 0.25
CAP_SECONDS: Final = 15.0
READ: Final = "read"
BIND_REPAIRS: Final = 16
"""Calls that follow bind refusals. In a class of two every second one hits the other instance."""
BIND_AT_ONCE: Final = 4
"""Of those, how many follow without a pause: nothing was executed, and nothing needs time to heal."""
SPLIT_REPAIRS: Final = 3
"""Calls that follow when an instance does not host the target: another one of the class may (C13.2-42)."""
READS: Final[Mapping[str, frozenset[str]]] = {
    "delivery": frozenset(
        {
            "list-memberships",
            "lifecycle-memberships",
            "anycast-status",
            "read-history",
            "read-registry",
            "read-roster",
            "task-epoch",
            "lease-holder",
        }
    )
}
"""Commands of compiled-in contracts that declare nothing and only read; a declaration wins (C13.7-11)."""

_PASSING: Final = frozenset((Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED))
"""Codes that may be gone a moment later."""


class Again(StrEnum):
    """Why a call is made again; the values are metric labels."""

    NOT_EXECUTED = "not_executed"
    READ = "read"
    BIND = "bind"
    UNMAPPED = "unmapped"
    CONTRACT = "contract"
    UNANSWERED = "unanswered"


def pause(attempt: int, chance: Callable[[], float]) -> float:
    """Seconds before repeat number ``attempt``, from 0: full jitter below 250 ms, doubled up to 15 s (C13.8-39)."""
    return min(CAP_SECONDS, BASE_SECONDS * 2.0 ** min(attempt, 16)) * chance()


def reads(endpoint: str, contract: Contract) -> bool:
    """Whether a repeat of the command changes nothing: declared so, or one of ours that is known to (C13.7-10, -11)."""
    if contract.effect is not None:
        return contract.effect == READ
    return contract.command in READS.get(endpoint, ())


def repeats(error: CallError, *, read: bool) -> Again | None:
    """Why the same call may be made again by itself after this error; None: it may not."""
    if error.code not in _PASSING:
        return None
    if error.outcome is Outcome.NOT_EXECUTED:
        return Again.NOT_EXECUTED
    # What was executed gives no other answer the next time.
    return Again.READ if read and error.outcome is Outcome.UNKNOWN else None


def repairs(error: CallError, route: str, *, bound: bool, resolved: bool) -> Again | None:
    """Why a call is to be made again after its basis was read anew, whatever its effect: each of these refusals says
    that nothing was executed. None for every other error.

    ``bound``: the caller chose the incarnation itself from a description. ``resolved``: the contract is from one.
    """
    if not isinstance(error, CallRefused) or error.outcome is not Outcome.NOT_EXECUTED:
        return None
    if bound and error.has(headers.DETAIL_BIND_REFUSED):
        return Again.BIND
    if route == "one" and error.code == Code.EXPIRED and error.has(headers.DETAIL_UNMAPPED):
        return Again.UNMAPPED
    return Again.CONTRACT if resolved and error.code == Code.CONTRACT_MISMATCH else None
