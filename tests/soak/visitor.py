"""One client of the soak: it connects again and again, does legal and illegal things, and believes nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sidecar.base.ed25519 import SigningKey
from sidecar.coordinator.authority.proof import make_response
from sidecar.coordinator.wire import frames as fr
from sidecar.coordinator.wire.enums import ErrorCode
from sidecar.coordinator.wire.limits import Limits
from tests.e2e.peer import hello
from tests.soak import wrongs
from tests.soak.acts import Acts
from tests.soak.talk import Link, Talk
from tests.soak.truth import Failed, Truth

ROOMS: tuple[dict[str, int], ...] = (
    {},
    {},
    {"max_frame_bytes": 16_384, "max_page_bytes": 8_192, "max_page_records": 40, "max_typed_payload_bytes": 4_096},
)
LIFE = 24 * 3600


@dataclass(frozen=True)
class Who:
    """A principal of the soak."""

    name: str
    key: SigningKey
    key_id: bytes
    scopes: int
    capabilities: int


async def login(
    truth: Truth, path: str, who: Who, rng: random.Random, name: str, rooms: dict[str, int], *, dribble: bool = False
) -> Talk | None:
    """The whole handshake. None when the registry does not admit the key at the moment."""
    began = time.monotonic()
    link = await Link.open(path)
    first = hello(offered_capabilities=who.capabilities, **rooms).encode()
    if dribble:
        for byte in first:
            link.send(bytes((byte,)))
            await asyncio.sleep(0)
    else:
        link.send(first)
    challenge = await link.next()
    if not isinstance(challenge, fr.WorkloadChallenge):
        raise Failed(f"{name}: {challenge!r} and no challenge")
    link.send(make_response(challenge, who.key, scopes=who.scopes, requested_expiry=int(time.time()) + LIFE))
    welcome = await link.next()
    if isinstance(welcome, fr.CoordHelloOk):
        selected = Limits(
            welcome.max_frame_bytes,
            welcome.max_page_bytes,
            welcome.max_page_records,
            welcome.max_typed_payload_bytes,
            welcome.max_event_credit_count,
            welcome.max_event_credit_bytes,
        )
        return Talk(truth, name, who.key_id, link, welcome, selected, began)
    link.abort()
    truth.lives += 1
    refused = isinstance(welcome, fr.CoordErrorFrame) and welcome.code is ErrorCode.AUTHENTICATION_FAILED
    if not refused or not truth.refusable(who.key_id, began):
        code = welcome.code.name if isinstance(welcome, fr.CoordErrorFrame) else "without a word"
        raise Failed(f"{name}: the login of a registered key was refused: {code}")
    return None


@dataclass
class Visitor:
    """One client; ``passing`` when it never stays longer than a handshake."""

    truth: Truth
    path: str
    who: Who
    number: int
    rng: random.Random
    stranger: SigningKey
    passing: bool
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=20))

    def __post_init__(self) -> None:
        self.name = f"{self.who.name}/{self.number}"
        self.acts = Acts(self.truth, self.rng, self.who.key_id, self.number)

    async def live(self) -> None:
        """Until the soak is over."""
        try:
            while not self.truth.over.is_set():
                if self.passing or self.rng.random() < 0.2:
                    await self._pass()
                else:
                    await self._stay()
                await asyncio.sleep(self.rng.random() * 0.2)
        except Exception as error:
            self.truth.fail(error, self.name, tuple(self.recent))

    # ---- a whole connection ----

    async def _stay(self) -> None:
        talk = await login(
            self.truth,
            self.path,
            self.who,
            self.rng,
            self.name,
            self.rng.choice(ROOMS),
            dribble=self.rng.random() < 0.05,
        )
        if talk is None:
            return
        talk.on_snapshot = self.acts.check_snapshot
        for _ in range(self.rng.randrange(3, self.rng.choice((20, 60, 60, 400)))):
            if talk.ended.is_set() or self.truth.over.is_set():
                break
            await self.acts.act(talk)
            await asyncio.sleep(self.rng.random() * 0.3)
        await self._part(talk)
        self.acts.parted()

    async def _part(self, talk: Talk) -> None:
        ways: list[Callable[[Talk], Any]] = [
            self._in_order,
            self._in_order,
            self._in_order,
            self._at_once,
            self._fatal,
            self._fatal,
            self._fatal,
            self._half_closed,
            self._half_frame,
            self._peer_error,
            self._unread,
        ]
        way = self.rng.choice(ways)
        talk.note(f"ends by {way.__name__}")
        self.truth.seen[f"end {way.__name__}"] += 1
        await way(talk)
        if not talk.ended.is_set():
            await talk.leave()

    async def _in_order(self, talk: Talk) -> None:
        await talk.settle()

    async def _at_once(self, talk: Talk) -> None:
        talk.left = True
        talk.link.abort()

    async def _fatal(self, talk: Talk) -> None:
        talk.hurry()
        name, image, codes = wrongs.fatal(self.rng, talk)
        talk.note(f"> fatal: {name}")
        self.truth.seen[f"fatal {name}"] += 1
        talk.doom = codes
        talk.link.send(image)
        await talk.wait_end()

    async def _half_closed(self, talk: Talk) -> None:
        talk.hurry()
        talk.left = True
        if not talk.link.writer.is_closing():
            talk.link.writer.write_eof()
        await talk.wait_end()

    async def _half_frame(self, talk: Talk) -> None:
        talk.link.send(b"\x00\x00\x00\x20\x10\x01\x04")
        await self._at_once(talk)

    async def _peer_error(self, talk: Talk) -> None:
        talk.hurry()
        talk.left = True
        talk.link.send(fr.CoordErrorFrame(code=ErrorCode.INTERNAL, message="bye"))
        await talk.wait_end()

    async def _unread(self, talk: Talk) -> None:
        """Requests whose answers nobody reads, then gone."""
        talk.left = True
        talk.reading.clear()
        for _ in range(6):
            self.acts.open_snapshot(talk)
        talk.ping(100)
        await asyncio.sleep(self.rng.random())
        talk.link.abort()

    # ---- a handshake that comes to nothing ----

    async def _pass(self) -> None:
        ways = (
            [self._wrong_hello] * 4
            + [self._wrong_response] * 4
            + [self._pings, self._gone, self._gone_challenged, self._in_and_out, self._in_and_out]
        )
        way = self.rng.choice(ways)
        self.recent.append(f"{self.truth.elapsed:.2f} {way.__name__}")
        self.truth.seen[f"pass {way.__name__}"] += 1
        await way()

    async def _refused(self, link: Link, code: ErrorCode) -> None:
        """One COORD_ERROR of this code, then the end."""
        error, after = await link.next(), await link.next()
        link.abort()
        self.truth.lives += 1
        if not isinstance(error, fr.CoordErrorFrame) or error.code is not code or after is not None:
            raise Failed(f"{error!r} {getattr(error, 'code', '')} and {after!r} instead of {code.name} and the end")

    async def _wrong_hello(self) -> None:
        link = await Link.open(self.path)
        image, code = wrongs.before_hello(self.rng)
        link.send(image)
        await self._refused(link, code)

    async def _challenged(self) -> tuple[Link, fr.WorkloadChallenge]:
        link = await Link.open(self.path)
        link.send(hello())
        challenge = await link.next()
        if not isinstance(challenge, fr.WorkloadChallenge):
            raise Failed(f"{challenge!r} and no challenge")
        return link, challenge

    async def _wrong_response(self) -> None:
        link, challenge = await self._challenged()
        image, code = wrongs.instead_of_response(self.rng, challenge, self.who.key, self.stranger)
        link.send(image)
        await self._refused(link, code)

    async def _pings(self) -> None:
        link = await Link.open(self.path)
        for nonce in range(3):
            link.send(fr.CoordPing(nonce=nonce))
            pong = await link.next()
            if not isinstance(pong, fr.CoordPong) or pong.nonce != nonce:
                raise Failed(f"{pong!r} and no pong")
        link.abort()
        self.truth.lives += 1

    async def _gone(self) -> None:
        link = await Link.open(self.path)
        link.send(self.rng.choice((b"", b"\x00", hello().encode()[:30], hello())))
        await asyncio.sleep(0)
        link.abort()
        self.truth.lives += 1

    async def _gone_challenged(self) -> None:
        link, _ = await self._challenged()
        link.abort()
        self.truth.lives += 1

    async def _in_and_out(self) -> None:
        talk = await login(self.truth, self.path, self.who, self.rng, self.name, {})
        if talk is not None:
            talk.left = True
            talk.link.abort()
            await talk.wait_end()
