"""Who a static credential makes its holder (C2-13, C2-14, OPEN C2-b).

Principal, lifecycle, space, form and roles stand in the tags of the token, the channels in its permission rows. What
is read here only decides what this client asks for: the broker's grants are the boundary, not this reading of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.base.secret import Secret
from sidecar.rails.names import (
    InvalidName,
    Lifecycle,
    Principal,
    Template,
    api,
    buckets,
    consumers,
    inboxes,
    streams,
)
from sidecar.rails.names.errors import excerpt
from sidecar.rails.names.grants import covers
from sidecar.rails.names.principals import TAG_FORM, TAG_LIFECYCLE, TAG_ROLE, TAG_SPACE
from sidecar.rails.names.subjects import CHAT, INST
from sidecar.rails.names.tokens import TAIL, policy_channel
from sidecar.rails.space.claims import UserClaims
from sidecar.rails.space.creds import Creds, InvalidCreds, parse_creds
from sidecar.rails.space.holder import Form

_PROBE: Final = "x"
"""A channel that cuts a chat row in two: what is before it, and nothing behind it."""


class Stance(StrEnum):
    """What a credential makes its holder on the messaging plane, as its permission rows tell."""

    MEMBER = "member"
    """It joins channels, and has durables of its own."""
    OBSERVER = "observer"
    """It reads every post and has no durables (CB-61)."""
    ADMIN = "admin"
    """It reads every message (CB-71)."""
    SENDER = "sender"
    """It sends, and receives nothing (CB-105)."""
    DM_READER = "dm-reader"
    """It reads its own direct messages and nothing else (C8-36)."""


class NoIdentity(InvalidCreds):
    """Creds whose token does not say who its holder is in which space; the message shows nothing of the token."""


class OtherPrincipal(ValueError):  # noqa: N818 - it says whose name was given
    """A card or an option names somebody else than the credential does. Nothing was published (C2-14)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One holder of one credential.

    ``connection`` is the user nkey, which names the inbox and nothing else (C2-11). ``readable`` and ``postable`` are
    the channels and patterns of the read list and of the post list. ``expires_at``: Unix seconds.
    """

    space: str
    form: Form
    lifecycle: Lifecycle
    connection: str
    roles: tuple[str, ...]
    readable: tuple[str, ...]
    postable: tuple[str, ...]
    expires_at: int
    stance: Stance = Stance.MEMBER

    @classmethod
    def from_creds(cls, text: Secret | bytes) -> Identity:
        """From the content of a creds file. Raises InvalidCreds; NoIdentity when the token names no lifecycle."""
        return cls.of(parse_creds(Secret(text) if isinstance(text, bytes) else text))

    @classmethod
    def of(cls, creds: Creds) -> Identity:
        """From creds that were read. Raises NoIdentity."""
        claims = creds.user
        try:
            return cls._of(claims, creds.token.expires_at)
        except InvalidName as error:
            raise NoIdentity(f"the credential names no member of a space: {error.reason}") from None

    @classmethod
    def _of(cls, claims: UserClaims, expires_at: int | None) -> Identity:
        principal = Principal.from_tags(claims.tags)
        space = _single(TAG_SPACE, claims.tags)["space"]
        form = _single(TAG_FORM, claims.tags)["form"]
        lifecycle = _single(TAG_LIFECYCLE, claims.tags)
        if Principal(lifecycle["owner"], lifecycle["actor"]) != principal:
            raise InvalidName("credential", "its lifecycle is another principal's", "C2-13")
        if form not in set(Form):
            raise InvalidName("credential", f"{excerpt(form)} is no form of a space", "C2-13")
        if expires_at is None:
            raise InvalidName("credential", "it has no end", "C9-13")
        own = {"owner": principal.owner, "actor": principal.actor}
        return cls(
            space=space,
            form=Form(form),
            lifecycle=Lifecycle(principal, lifecycle["uid"]),
            connection=claims.subject,
            roles=tuple(TAG_ROLE.split(tag)["role"] for tag in claims.tags if TAG_ROLE.fits(tag)),
            readable=_channels(claims.permissions.subscribe.allow, lambda one: CHAT.filter(space=space, channel=one)),
            postable=_channels(
                claims.permissions.publish.allow, lambda one: CHAT.filter(space=space, **own, channel=one)
            ),
            expires_at=expires_at,
            stance=_stance(space, principal, claims),
        )

    @property
    def principal(self) -> Principal:
        """What stands on the wire as the sender."""
        return self.lifecycle.principal

    def agree(
        self, *, card_id: str | None = None, principal: Principal | None = None, space: str | None = None
    ) -> None:
        """Refuse a card or an option that names another principal or space (C2-14). Raises OtherPrincipal."""
        if card_id is not None and card_id != self.principal.dot:
            raise OtherPrincipal(f"the card names {excerpt(card_id)}, the credential {self.principal.dot}")
        if principal is not None and principal != self.principal:
            raise OtherPrincipal(f"the option names {principal.dot}, the credential {self.principal.dot}")
        if space is not None and space != self.space:
            raise OtherPrincipal(f"the option names the space {excerpt(space)}, the credential {self.space}")

    def may_read(self, channel: str) -> bool:
        """Whether one entry of the read list holds the channel or pattern entirely (C9-07)."""
        return any(covers(entry, channel) for entry in self.readable)

    def may_post(self, channel: str) -> bool:
        """Whether the post list holds the channel."""
        return any(covers(entry, channel) for entry in self.postable)


def _stance(space: str, principal: Principal, claims: UserClaims) -> Stance:
    publish, subscribe = claims.permissions.publish.allow, claims.permissions.subscribe.allow
    reader = consumers.HISTORY_READER.build(reader=claims.subject, slot=0)
    if _any_covers(publish, api.CONSUMER_DELETE.build(stream=streams.CHAT.stream(space), consumer=reader)):
        return Stance.ADMIN if _any_covers(subscribe, INST.subtree(space=space)) else Stance.OBSERVER
    own = {"owner": principal.owner, "actor": principal.actor}
    if not _any_covers(publish, buckets.PRESENCE.subject(space, buckets.PRESENCE_KEY, **own)):
        return Stance.DM_READER
    inbox = inboxes.INBOX.subtree(connection=claims.subject)
    return Stance.MEMBER if any(row != inbox for row in subscribe) else Stance.SENDER


def _any_covers(rows: Iterable[str], subject: str) -> bool:
    return any(covers(row, subject) for row in rows)


def _single(template: Template, tags: Iterable[str]) -> dict[str, str]:
    """The fields of the one tag of a template; InvalidName otherwise."""
    found = [tag for tag in tags if template.fits(tag)]
    if len(found) != 1:
        raise InvalidName("credential", f"{len(found)} tags are a {template.name}", "C2-13")
    return template.split(found[0])


def _channels(rows: Sequence[str], filter_of: Callable[[str], str]) -> tuple[str, ...]:
    """The channels and patterns that some rows admit, each row judged as a chat row of the given kind."""
    before, everything = filter_of(_PROBE).removesuffix(_PROBE), filter_of(TAIL)
    found = (TAIL if covers(row, everything) else row.removeprefix(before) for row in rows)
    return tuple(dict.fromkeys(one for one, row in zip(found, rows, strict=True) if one != row and _fits(one)))


def _fits(channel: str) -> bool:
    try:
        policy_channel(channel)
    except InvalidName:
        return False
    return True
