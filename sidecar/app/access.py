"""Where a command of the messaging plane connects, as whom, and what it can read there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sidecar.base.clock import system_now
from sidecar.base.safefile import UnsafeFile, read_secret
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Notice
from sidecar.rails.messaging.durables import From
from sidecar.rails.messaging.identity import Identity, Stance
from sidecar.rails.messaging.joinlink import JoinLink
from sidecar.rails.messaging.peer import Peer
from sidecar.rails.messaging.reads import Reading, Reads
from sidecar.rails.messaging.reads_watched import WatchedReads
from sidecar.rails.messaging.registry import Registry
from sidecar.rails.messaging.roster import Roster
from sidecar.rails.names import Principal
from sidecar.rails.space.creds import MAX_CREDS_BYTES
from sidecar.rails.space.holder import Form

NOTHING: Final = frozenset[From]()
LINGER_SECONDS: Final = 2.0
"""How long the end of a command waits for the durable copies of what was shown."""


class NoBroker(Exception):  # noqa: N818 - a state
    """No connection was made in time; the message says what was heard last."""


class Expired(Exception):  # noqa: N818 - a state
    """The credential has ended."""


class WrongStance(Exception):  # noqa: N818 - what the credential is
    """What is asked for is not what holders of such a credential do; the message says who can."""


@dataclass(frozen=True, slots=True)
class Access:
    """One credential at one broker. ``known`` names principals that the caller knows by a short name."""

    url: str
    creds: Path
    identity: Identity
    tls: ssl.SSLContext | None = None
    known: Mapping[str, Principal] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def of(cls, url: str, creds: Path, *, known: Mapping[str, Principal] | None = None, name: str = "") -> Access:
        """Read the creds. Raises UnsafeFile, InvalidCreds, Expired."""
        try:
            text = read_secret(creds, MAX_CREDS_BYTES)
        except OSError as error:
            raise UnsafeFile(creds, f"cannot be read: {error.strerror}") from None
        identity = Identity.from_creds(text)
        if identity.expires_at <= system_now().wall:
            raise Expired(f"the credential in {creds} has ended")
        return cls(url, creds, identity, known=known or {}, name=name or identity.principal.actor)

    @classmethod
    def through(cls, link: JoinLink, creds: Path, *, name: str = "") -> Access:
        """To where a join link leads. Raises InvalidLink for one with a login of its own, and what ``of`` raises;
        OtherPrincipal for the creds of another space."""
        target = link.target("", creds=True)
        access = cls.of(link.url, creds, name=name)
        access.identity.agree(space=link.space)
        return cls(access.url, creds, access.identity, target.tls, name=access.name)

    def must_be(self, what: str, *stances: Stance) -> None:
        """Raises WrongStance when the credential is none of these."""
        if self.identity.stance not in stances:
            who = " or ".join(_HOLDERS[one] for one in stances)
            raise WrongStance(f"{_HOLDERS[self.identity.stance]} cannot {what}; use the creds of {who}")

    @contextlib.asynccontextmanager
    async def peer(
        self,
        seconds: float,
        *,
        sources: Collection[From] = NOTHING,
        present: bool = False,
        watch: Callable[[Notice], None] | None = None,
    ) -> AsyncIterator[Peer]:
        """A connected member; what it has not settled at the end comes again at once. Raises NoBroker and what
        ``Peer.connect`` raises."""
        heard: list[str] = []

        def noted(notice: Notice) -> None:
            if notice.said is not None:
                heard[:] = [notice.said.text or notice.said.fault.value]
            if watch is not None:
                watch(notice)

        more: dict[str, Any] = {"sources": sources, "present": present, "watch": noted, "tls": self.tls}
        try:
            async with asyncio.timeout(seconds):
                peer = await Peer.connect([self.url], self.creds, name=self.name, metrics=Metrics(), **more)
        except TimeoutError:
            raise NoBroker(f"no connection to {self.url} within {seconds:g} s{_last(heard)}") from None
        try:
            yield peer
        finally:
            await peer.settled(LINGER_SECONDS)  # without them the next process shows it again
            await peer.close(drain=0)

    def reads(self, peer: Peer) -> Reads:
        """What this credential can read of its space, in the way that is granted to it."""
        if self.identity.stance is Stance.MEMBER:
            return peer
        reading = Reading(system_now, peer.metrics)
        return WatchedReads(peer.connection, self.identity.space, reading, entropy=os.urandom)

    async def resolve(self, peer: Peer, text: str) -> Principal:
        """Whom a person means: a name that the caller knows, a principal in dot-form, or the one live peer of a name.
        Raises NoSuchPeer, AmbiguousName, RosterUnreadable."""
        if text in self.known:
            return self.known[text]
        with contextlib.suppress(ValueError):
            return Principal.from_dot(text)
        return (await self.reads(peer).roster()).resolve(text)

    @property
    def mediated(self) -> bool:
        """Whether the delivery plane reads for members of this space."""
        return self.identity.form is Form.MEDIATED


def _last(heard: list[str]) -> str:
    return f": {heard[0]}" if heard else ""


_HOLDERS: Final = {
    Stance.MEMBER: "an agent",
    Stance.OBSERVER: "an observer",
    Stance.ADMIN: "an admin",
    Stance.SENDER: "an operator",
    Stance.DM_READER: "a reader of direct messages",
}

__all__ = ["Access", "Expired", "NoBroker", "Registry", "Roster", "WrongStance"]
