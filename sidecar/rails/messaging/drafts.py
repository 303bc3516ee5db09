"""From what a caller wants to say to the one message and the one subject that say it (C4-01, C3-11..17).

Pure: the clock and the random source are arguments. What a publisher must not send is refused here or by
``envelopes.message.encode``, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.envelopes.message import (
    ArtifactPart,
    DataPart,
    EndpointRef,
    ExtensionPart,
    Message,
    OddPart,
    Part,
    TextPart,
    encode,
    fresh_id,
    mention_names,
    message_headers,
)
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.messaging.roster import Roster
from sidecar.rails.names import Principal
from sidecar.rails.names.subjects import CHAT, INST, SVC
from sidecar.rails.names.tokens import GRAMMARS, publish_channel

Content: TypeAlias = str | Sequence[Part]
ENTROPY_BYTES: Final = 10
"""What a fresh id takes of the random source."""


class Channel(NamedTuple):
    """A post: everybody who subscribes the channel (multicast)."""

    name: str


class Direct(NamedTuple):
    """A direct message: one instance, also while it is offline (unicast)."""

    to: Principal


class Role(NamedTuple):
    """Work for one holder of a role (anycast)."""

    name: str


Target: TypeAlias = Channel | Direct | Role
KINDS: Final = {Channel: "channel", Direct: "dm", Role: "anycast"}


class Extras(NamedTuple):
    """What may stand beside the content. ``message_id`` is for a caller that sends the same message again."""

    mentions: Sequence[str] = ()
    reply_to: str | None = None
    context_id: str | None = None
    message_id: str | None = None


NOTHING_MORE: Final = Extras()
_PARTS: Final = (TextPart, DataPart, ArtifactPart, ExtensionPart, OddPart)


class Draft(NamedTuple):
    """A message that is ready to be stored: ``headers`` let the broker drop a second copy (C8-60)."""

    kind: str
    message_id: str
    subject: str
    data: bytes
    headers: dict[str, str]


def parts_of(content: Content) -> tuple[Part, ...]:
    """Text stands for one text part."""
    if isinstance(content, str):
        return (TextPart(content),)
    parts = tuple(content) if isinstance(content, list | tuple) else ()
    if type(content) not in (list, tuple) or not all(isinstance(part, _PARTS) for part in parts):
        raise EnvelopeError("parts", "is neither text nor a list of parts")
    return parts


def draft(
    identity: Identity,
    sender: EndpointRef,
    target: Target,
    content: Content,
    extras: Extras = NOTHING_MORE,
    *,
    now_ms: int,
    entropy: bytes,
    max_payload: int,
) -> Draft:
    """The one publish that a message takes (C8-61). Raises InvalidName for a target that is none, EnvelopeError for
    content that must not be sent, TooLarge for more than ``max_payload`` bytes with the headers."""
    message_id = fresh_id(now_ms, entropy) if extras.message_id is None else extras.message_id
    channel = to = role = None
    if isinstance(target, Channel):
        channel, subject = _channel(identity, target.name)
    elif isinstance(target, Direct):
        to, subject = target.to.dot, _direct(identity, target.to)
    else:
        role, subject = target.name, _role(identity, target.name)
    message = Message(
        message_id,
        now_ms,
        identity.space,
        sender,
        parts_of(content),
        channel,
        to,
        role,
        tuple(extras.mentions),
        extras.reply_to,
        extras.context_id,
    )
    headers = message_headers(message_id)
    data = encode(message, max_payload=max(0, max_payload - header_bytes(headers)))
    return Draft(KINDS[type(target)], message_id, subject, data, headers)


@lru_cache(maxsize=256)
def _channel(identity: Identity, text: str) -> tuple[str, str]:
    """The channel of a post and its subject. A member posts on few channels, again and again."""
    channel = publish_channel(text)
    return channel, CHAT.build(**_own(identity), channel=channel)


@lru_cache(maxsize=256)
def _direct(identity: Identity, to: Principal) -> str:
    return INST.build(**_own(identity), to_owner=to.owner, to_actor=to.actor)


@lru_cache(maxsize=256)
def _role(identity: Identity, role: str) -> str:
    return SVC.build(**_own(identity), role=GRAMMARS["role"].check(role))


def _own(identity: Identity) -> dict[str, str]:
    return {"space": identity.space, "owner": identity.principal.owner, "actor": identity.principal.actor}


def header_bytes(headers: dict[str, str]) -> int:
    """Bytes of a header block, which count against the broker's ``max_payload`` too."""
    return len(b"NATS/1.0\r\n\r\n") + sum(len(name) + len(value) + len(": \r\n") for name, value in headers.items())


def mentioned(names: Iterable[str], roster: Roster) -> dict[str, tuple[Principal, ...]]:
    """The live peers that have each of the names, as a mention compares them: lowered (C4-15, C5-06)."""
    wanted: dict[str, list[Principal]] = {name: [] for name in mention_names(names)}
    for row in roster.live:
        for name in mention_names((row.presence.card.name,)):
            if name in wanted:
                wanted[name].append(row.principal)
    return {name: tuple(sorted(found)) for name, found in wanted.items()}
