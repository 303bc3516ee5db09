"""Issues authority: evidence, attempt and accepted row, each created once and in this order (C13.15-05..12).

The connection is the caller's, with the grants of the ``issuer`` profile. Nothing that a generation has written is
touched again but its attempt row, by compare-and-set; the broker forgets the rows a minute after the horizon.
"""

from __future__ import annotations

from nats.aio.client import Client

from sidecar.base.strictjson import JsonValue, canonical
from sidecar.rails.names import api, buckets
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.space.asking import ask
from sidecar.rails.space.ceilings import Ceiling
from sidecar.rails.space.evidence import (
    MARGIN_SECONDS,
    AttemptState,
    Evidence,
    InvalidEvidence,
    Reference,
    Source,
    accepted_subject,
    accepted_value,
    attempt_subject,
    attempt_value,
    evidence_subject,
    read_accepted,
    read_attempt,
    source_subject,
)
from sidecar.rails.space.evidence import horizon_of as horizon_of
from sidecar.rails.space.evidence import listing_token as listing_token
from sidecar.rails.space.evidence import new_generation as new_generation
from sidecar.rails.space.keys import Changed, read_first, read_key, write_key
from sidecar.rails.space.layout_control import store_faults


class NotIssued(Exception):  # noqa: N818 - what was decided
    """Nothing was issued, and nothing may be handed out; the message says why."""


async def prove_stores(client: Client, space: str) -> None:
    """That both stores keep what is written to them, and forget it at its horizon (C13.15-09). Raises NotIssued."""
    for bucket in (buckets.ISSUED, buckets.ACCEPTED):
        answer = await ask(client, api.STREAM_INFO.build(stream=bucket.stream(space)))
        config = answer.get("config")
        faults = store_faults(bucket, config) if isinstance(config, dict) else ["it says no configuration"]
        if faults:
            raise NotIssued(f"{bucket.stream(space)} must not be used: {'; '.join(faults)}")


async def issue(
    client: Client,
    space: str,
    lifecycle: Lifecycle,
    generation: str,
    ceiling: Ceiling,
    expires: int,
    token: str,
    *,
    now: int,
    sources: tuple[Source, ...] = (),
) -> None:
    """Record what a credential may do, and release it under ``token``; only then may it be handed out (C13.15-07).

    ``expires`` is the end of the credential, at most the horizon of ``generation``; ``now`` the Unix time in seconds.
    Raises NotIssued for a horizon that is reached, a generation that was used, a token that is taken; InvalidEvidence,
    BrokerRefused, nats.errors.Error.
    """
    ref = Reference(space, lifecycle, generation)
    evidence = Evidence(ref, ceiling, sources, expires)
    _before(ref, now)
    life = ref.horizon + MARGIN_SECONDS - now
    await _create(client, evidence_subject(ref), evidence.value(), life, "the generation was used before")
    prepared = await _create(
        client, attempt_subject(ref), attempt_value(ref, AttemptState.PREPARED), life, "the generation was used before"
    )
    for source in sources:
        await _create(client, source_subject(ref, source), attempt_value(ref, AttemptState.PREPARED), life, "used")
    active = canonical(attempt_value(ref, AttemptState.ACTIVE))
    try:
        await write_key(client, attempt_subject(ref), active, prepared, seconds_to_live=life)
    except Changed:
        raise NotIssued("somebody else has ended the attempt") from None
    await _create(client, accepted_subject(space, token), accepted_value(ref), life, "the accepted token is taken")


async def reusable(client: Client, space: str, token: str, lifecycle: Lifecycle, *, now: int) -> str | None:
    """The generation that an accepted row names, when it is this lifecycle's, released and before its horizon; None
    where there is no row. Raises NotIssued for a row that cannot be used: it is never replaced (C13.15-31)."""
    kept = await read_key(client, buckets.ACCEPTED.stream(space), accepted_subject(space, token))
    if kept.value is None and kept.revision == 0:
        return None
    try:
        ref = read_accepted(kept.value or b"")
        if (ref.space, ref.lifecycle) != (space, lifecycle):
            raise NotIssued("the accepted row of this connection is somebody else's")
        _before(ref, now)
        attempt = await read_key(client, buckets.ISSUED.stream(space), attempt_subject(ref))
        if read_attempt(ref, attempt.value or b"") is not AttemptState.ACTIVE:
            raise NotIssued("the generation of this connection was not released")
    except InvalidEvidence as error:
        raise NotIssued(f"the accepted row of this connection: {error}") from None
    _before(ref, now)
    return ref.generation


async def recorded(client: Client, ref: Reference, ceiling: Ceiling, expires: int) -> bool:
    """Whether the evidence of a generation is byte for byte that of this ceiling (C13.15-17, C13.15-31)."""
    row = await read_first(client, buckets.ISSUED.stream(ref.space), evidence_subject(ref))
    return row == canonical(Evidence(ref, ceiling, (), expires).value())


def _before(ref: Reference, now: int) -> None:
    if not ref.lives(now):
        raise NotIssued("the horizon of the generation is reached (C13.15-03)")


async def _create(client: Client, subject: str, value: JsonValue, life: int, taken: str) -> int:
    """A row that nobody has written before, markers included (OPEN C13.12-b)."""
    try:
        return await write_key(client, subject, canonical(value), 0, seconds_to_live=life)
    except Changed:
        raise NotIssued(taken) from None
