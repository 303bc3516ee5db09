"""Whether a plane has a bound responder: the probe, and what its answer means (C6.1).

Four verdicts, of which ``unknown`` is neither of the others: nobody can tell (C6.1-20).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from sidecar.base.strictjson import JsonError, parse
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection, ConnectionFault, PermissionViolation, Subscription
from sidecar.rails.names import headers, subjects
from sidecar.rails.names.limits import LIVENESS_PROBE_MS
from sidecar.rails.names.principals import Principal

MAX_ANSWER: Final = 4_096
"""Bytes of an answer that is parsed."""


class Verdict(StrEnum):
    """What a responder says of itself, or what a probe found (C6.1-14..19)."""

    BOUND = "bound"
    UNBOUND = "unbound"
    STALE = "stale"
    UNKNOWN = "unknown"


class Why(StrEnum):
    """Where the verdict is from."""

    ANSWERED = "answered"
    NOBODY = "nobody"
    """The broker says that nobody listens."""
    TIMEOUT = "timeout"
    DENIED = "denied"
    DISCONNECTED = "disconnected"
    UNREADABLE = "unreadable"
    """An answer came that is none."""


class Liveness(NamedTuple):
    """The verdict about a plane. ``instance`` names the binding that answered; it is derived from nothing."""

    plane: str
    verdict: Verdict
    why: Why
    instance: str | None = None


_VERDICTS: Final = frozenset(Verdict)


def grade(plane: str, data: bytes) -> Liveness:
    """The verdict of one answer; anything that is not exactly an answer of this plane is ``unknown`` (C6.1-25)."""
    unreadable = Liveness(plane, Verdict.UNKNOWN, Why.UNREADABLE)
    try:
        value = parse(data, limit=MAX_ANSWER)
    except JsonError:
        return unreadable
    if type(value) is not dict or value.get("plane") != plane:
        return unreadable
    responder, instance = value.get("responder"), value.get("instance")
    if type(responder) is not str or responder not in _VERDICTS:
        return unreadable
    if "instance" not in value:
        return Liveness(plane, Verdict(responder), Why.ANSWERED)
    if type(instance) is not str or not instance:
        return unreadable
    return Liveness(plane, Verdict(responder), Why.ANSWERED, instance)


async def probe(
    connection: Connection,
    space: str,
    principal: Principal,
    plane: str,
    *,
    seconds: float = LIVENESS_PROBE_MS / 1000,
    entropy: Callable[[int], bytes] = os.urandom,
    metrics: Metrics | None = None,
) -> Liveness:
    """Ask a plane, under the own principal. InvalidName for a plane that is not one, before anything is sent (C6.1-02).

    Never raises for what happens on the way: that is ``unknown``, with the reason in ``why`` (C6.1-18).
    """
    names = {"space": space, "owner": principal.owner, "actor": principal.actor, "plane": plane}
    request = subjects.LIVE.build(**names)
    reply = subjects.LIVE_REPLY.build(**names, nonce=entropy(16).hex())
    try:
        async with asyncio.timeout(seconds):
            found = await _ask(connection, plane, request, reply)
    except TimeoutError:
        found = Liveness(plane, Verdict.UNKNOWN, Why.TIMEOUT)
    except PermissionViolation:
        found = Liveness(plane, Verdict.UNKNOWN, Why.DENIED)
    except ConnectionFault:
        found = Liveness(plane, Verdict.UNKNOWN, Why.DISCONNECTED)
    if metrics is not None:
        metrics.counter("liveness_probes", plane, found.verdict.value).inc()
    return found


async def _ask(connection: Connection, plane: str, request: str, reply: str) -> Liveness:
    """The first answer on a subscription of this probe alone, which stands before the request is sent (C6.1-21)."""
    subscription = await connection.subscribe(reply, max_messages=16, max_bytes=16 * MAX_ANSWER)
    try:
        await connection.ready()
        async with connection.exchange(request, reply=reply) as broken:
            answer = asyncio.create_task(_live(subscription, request))
            try:
                await asyncio.wait((answer, broken), return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    broken.result()
                message = await answer
            finally:
                answer.cancel()
    finally:
        await subscription.close()
    return Liveness(plane, Verdict.UNBOUND, Why.NOBODY) if message is None else grade(plane, message.data)


async def _live(subscription: Subscription, request: str) -> Msg | None:
    """The first message that is no stored one, which a read would have put here; None for nobody there."""
    while True:
        message = await subscription.next()
        if headers.says_nobody(message.headers, message.data, request):
            return None
        if not headers.carries_provenance(message.headers or ()):
            return message
