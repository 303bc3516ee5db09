"""Rows by which a holder calls endpoints and hears their answers and events (C13.9-M02, M03, M06, M12, M19).

Every row stands twice, once for each rail; a holder with a generation gets those of the issued rail, any other those of
the legacy rail, and none both (C13.2-26). The three listing rows are the one exception (C13.15-28).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from sidecar.rails.names import api, buckets, endpoint, planes
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.space.evidence import horizon_of, listing_token
from sidecar.rails.space.holder import Capability, EventRead, Form, Holder, Profile
from sidecar.rails.space.rows import (
    BOTH,
    DELIVERY_ENDPOINT,
    DESCRIBE,
    MEDIATED,
    REGISTRY_ENDPOINT,
    Row,
    Values,
    constant,
    grant,
    space_of,
    triple_of,
)

AGENT, OPERATOR, ENDPOINT = Profile.AGENT, Profile.OPERATOR, Profile.ENDPOINT
CALLERS: Final = (AGENT, OPERATOR)
"""Profiles that take capabilities; what each may take is for ``grants.check_capabilities``."""
RAILS: Final = (False, True)

SELF_COMMANDS: Final = ("run-answer", "turn-participate", "turn-pending", "turn-unconfirmed", "turn-yield")
"""Commands of the manager that every agent may send about itself (CB-16)."""
DELIVERY_COMMANDS: Final = (
    "anycast-cancel",
    "anycast-status",
    "anycast-takes",
    "durable-join",
    "durable-leave",
    "list-memberships",
)
"""Commands of the delivery endpoint that every agent may send (CB-15, OPEN C7-a)."""
READ_COMMANDS: Final = (
    "fetch",
    "lease-holder",
    "read-history",
    "read-registry",
    "read-roster",
    "settle",
    "task-epoch",
)
"""Commands by which the delivery plane reads for an agent of a mediated space (C9-47)."""
REGISTRY_COMMANDS: Final = ("artifacts", "events", "instances", "record", "target")
"""Commands by which the registry reads the control surface for every caller (C13.4-42, C13.9-073)."""
SERVING_COMMANDS: Final = ("artifacts", "caller-view", DESCRIBE, "instances", "target")
"""Commands of the registry that a serving endpoint sends (C13.7-68, C13.9-005)."""


def on_rail(
    holder: Holder, issued: bool, wanted: Callable[[Holder], Iterable[Values]]
) -> Iterable[dict[str, str | int]]:
    """The values of a holder on one rail with its triple and generation; none on the rail that it does not ride."""
    if issued is (holder.generation is None):
        return []
    own = triple_of(holder) if holder.generation is None else {**triple_of(holder), "generation": holder.generation}
    return [{**own, **one} for one in wanted(holder)]


def _requests(
    row: str,
    route: str,
    mode: str,
    named: Callable[[Holder], Iterable[Values]],
    profiles: tuple[Profile, ...] = (AGENT,),
    forms: tuple[Form, ...] = BOTH,
) -> Iterator[Row]:
    for issued in RAILS:

        def values(holder: Holder, issued: bool = issued) -> Iterable[Values]:
            return on_rail(holder, issued, named)

        yield grant(row, profiles, "publish", endpoint.REQUESTS[route, mode, issued], values, forms=forms)


def replies(
    row: str, profiles: tuple[Profile, ...], named: Callable[[Holder], Iterable[Values]] | None = None
) -> Iterator[Row]:
    """The own reply rail, of exactly this arity (C13.2-47)."""
    for issued in RAILS:

        def values(holder: Holder, issued: bool = issued) -> Iterable[Values]:
            return on_rail(holder, issued, named or constant())

        yield grant(row, profiles, "subscribe", endpoint.REPLIES[issued], values)


def commands(name: str, *wanted: str) -> Callable[[Holder], Iterable[Values]]:
    """These commands of one endpoint."""
    return lambda holder: [{"endpoint": name, "command": command} for command in wanted]


def call_rows() -> Iterator[Row]:
    """What callers publish: the baseline of every agent, and what the capabilities of a holder name."""
    for route in endpoint.ROUTES:
        # The one row of untrusted profiles with every endpoint in it (OPEN C13.9-f).
        yield from _requests("CB-14", route, UNTARGETED, constant(command=DESCRIBE))
    yield from _requests("CB-15", "one", UNTARGETED, commands(DELIVERY_ENDPOINT, *DELIVERY_COMMANDS))
    yield from _requests("C9-47", "one", UNTARGETED, commands(DELIVERY_ENDPOINT, *READ_COMMANDS), forms=MEDIATED)
    yield from _requests("CB-16", "one", "self", commands("manager", *SELF_COMMANDS))
    yield from _requests("C13.4-42", "one", UNTARGETED, commands(REGISTRY_ENDPOINT, *REGISTRY_COMMANDS))
    yield from _requests(
        "C13.7-68", "one", UNTARGETED, commands(REGISTRY_ENDPOINT, *SERVING_COMMANDS), profiles=(ENDPOINT,)
    )
    yield from replies("C13.9-M03", (ENDPOINT,))
    yield from replies("C13.9-M03", (OPERATOR,), lambda holder: [{}] if holder.capabilities else [])
    for mode in dict.fromkeys(mode for _, mode, _ in endpoint.REQUESTS):
        for route in endpoint.ROUTES:
            yield from _requests("C13.9-M02", route, mode, _able(mode), CALLERS)

        def submitted(holder: Holder, mode: str = mode) -> Iterable[Values]:
            return [{**triple_of(holder), **one} for one in _able(mode, journal=True)(holder)]

        yield grant("C13.9-M12", CALLERS, "publish", endpoint.SUBMISSIONS[mode], submitted)


def _able(mode: str, *, journal: bool = False) -> Callable[[Holder], Iterable[Values]]:
    def wanted(one: Capability) -> bool:
        return one.mode == mode and (one.journal or not journal)

    return lambda holder: [one.tokens for one in holder.capabilities if wanted(one)]


def _reads(*, goals: bool) -> Callable[[Holder], Iterable[Values]]:
    def values(holder: Holder) -> Iterable[Values]:
        own = triple_of(holder) if goals else space_of(holder)
        return [{**own, **one.tokens} for one in holder.hears if _of_goals(one) is goals]

    return values


def _of_goals(one: EventRead) -> bool:
    return not one.cluster


def event_rows() -> Iterator[Row]:
    """Live events, from every instance and epoch of an endpoint; of goals the holder's own alone (C13.9-M19, CB-06)."""
    yield grant("CB-06", CALLERS, "subscribe", planes.EVENT_CLUSTER, _reads(goals=False))
    yield grant("CB-06", CALLERS, "subscribe", planes.EVENT_GOAL, _reads(goals=True), below=True)


def listing_rows() -> Iterator[Row]:
    """The three rows of a listing generation, good for one question to the registry (C13.15-29)."""

    def listing(holder: Holder, **more: str) -> Iterable[Values]:
        if holder.listing is None:
            return []
        return [{**triple_of(holder), "generation": holder.listing, **more}]

    def asks(holder: Holder) -> Iterable[Values]:
        return listing(holder, endpoint=REGISTRY_ENDPOINT, command="endpoints")

    def accepted(holder: Holder) -> Iterable[Values]:
        if holder.listing is None:
            return []
        token = listing_token(holder.connection, horizon_of(holder.listing))
        key = buckets.ACCEPTED.subject(holder.space, buckets.ACCEPTED_KEY, token=token)
        return [{"stream": buckets.ACCEPTED.stream(holder.space), "filter": key}]

    agent = (AGENT,)
    yield grant("CB-05", agent, "subscribe", endpoint.REPLIES[True], listing)
    yield grant("CB-12", agent, "publish", endpoint.REQUESTS["one", UNTARGETED, True], asks)
    yield grant("CB-13", agent, "publish", api.DIRECT_GET_LAST, accepted)
