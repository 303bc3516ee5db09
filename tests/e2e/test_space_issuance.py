"""Lifecycles and issued authority at a real broker: reserved once, current one at a time, recorded before they are
handed out (C13.1, C13.15)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from nats.aio.client import Client

from sidecar.base.strictjson import canonical
from sidecar.rails.names import buckets
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space import issuance, lifecycles
from sidecar.rails.space.asking import BrokerRefused
from sidecar.rails.space.ceilings import Ceiling, Rule
from sidecar.rails.space.evidence import (
    AttemptState,
    Evidence,
    Reference,
    accepted_subject,
    accepted_value,
    attempt_subject,
    attempt_value,
    evidence_subject,
    new_generation,
    read_accepted,
    read_attempt,
    read_evidence,
)
from sidecar.rails.space.heads import Head, HeadState, InvalidHead, head_subject, uid_subject
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.issuance import NotIssued, issue, recorded, reusable
from sidecar.rails.space.keys import read_first, read_key, write_key
from sidecar.rails.space.lifecycles import Changed, HeadRefused, UidTaken
from tests.e2e.space_broker import SpaceBroker
from tests.e2e.space_members import SPACE, Space, clock, uid_of
from tests.e2e.test_space_provision import root

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARKER = {"KV-Operation": "DEL"}
MANAGER = "m2" * 13
CEILING = Ceiling(Rule(("cotal.main.x",)), Rule(()))
ISSUED, RECORDS, ACCEPTED = (one.stream(SPACE) for one in (buckets.ISSUED, buckets.RECORDS, buckets.ACCEPTED))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Space]:
    async with SpaceBroker(tmp_path_factory.mktemp("issuance")) as broker:
        made = Space(broker, Form.MEDIATED)
        await made.open()
        yield made


@contextlib.asynccontextmanager
async def as_(space: Space, profile: Profile) -> AsyncIterator[Client]:
    async with space.member(profile, profile.replace("-", "")) as (user, _):
        yield user.client


def life(actor: str, uid: str = "") -> Lifecycle:
    return Lifecycle(Principal("local", actor), uid or uid_of(actor))


# ---- lifecycles ----


@pytest.mark.req("C13.1-004", "C13.1-005", "C13.1-006", "C13.1-007", "C13.9-M55", "C13.7-44")
async def test_a_uid_is_reserved_once_and_for_good(here: Space) -> None:
    alice, bob, uid = Principal("local", "alice"), Principal("local", "bob"), uid_of("reserved")
    async with as_(here, Profile.LIFECYCLES) as client, root(here) as hand:
        for _ in range(2):
            await lifecycles.reserve(client, SPACE, uid, alice)
        for other in (bob, Principal("other", "alice")):
            with pytest.raises(UidTaken):
                await lifecycles.reserve(client, SPACE, uid, other)
        kept = await read_key(client, RECORDS, uid_subject(SPACE, uid))
        assert kept.value == canonical({"owner": "local", "actor": "alice", "mintedBy": "provisioner"})
        gone = uid_of("gone")
        await lifecycles.reserve(client, SPACE, gone, alice)
        await hand.client.request(uid_subject(SPACE, gone), b"", headers=MARKER, timeout=10)
        for who in (alice, bob):
            with pytest.raises(InvalidHead, match=r"C13\.1-007"):
                await lifecycles.reserve(client, SPACE, gone, who)


@pytest.mark.req("C13.1-019", "C13.1-020", "C13.1-021", "C13.1-026", "C13.1-027", "C13.1-017")
async def test_one_lifecycle_of_a_name_is_current_until_it_is_retired(here: Space) -> None:
    first, second = life("turn", uid_of("first")), life("turn", uid_of("second"))
    async with as_(here, Profile.LIFECYCLES) as client, root(here) as hand:
        assert await lifecycles.read_head(client, SPACE, first.principal) == (None, 0)
        head, revision = await lifecycles.activate(client, SPACE, first, MANAGER)
        assert head == Head(first.principal, first.uid, MANAGER, 0, HeadState.ACTIVE)
        assert await lifecycles.activate(client, SPACE, first, MANAGER) == (head, revision)
        with pytest.raises(HeadRefused, match="active"):
            await lifecycles.activate(client, SPACE, second, MANAGER)
        for _ in range(2):
            await lifecycles.begin_retirement(client, SPACE, first, "op-1")
        with pytest.raises(HeadRefused, match="another operation"):
            await lifecycles.begin_retirement(client, SPACE, first, "op-2")
        for one in (first, second):
            with pytest.raises(HeadRefused, match="retiring"):
                await lifecycles.activate(client, SPACE, one, MANAGER)
        with pytest.raises(HeadRefused):
            await lifecycles.finish_retirement(client, SPACE, first, "op-2")
        for _ in range(2):
            await lifecycles.finish_retirement(client, SPACE, first, "op-1")
            await lifecycles.begin_retirement(client, SPACE, first, "op-1")
        with pytest.raises(HeadRefused, match="never comes back"):
            await lifecycles.activate(client, SPACE, first, MANAGER)
        head, after = await lifecycles.activate(client, SPACE, second, MANAGER)
        assert (head.uid, after > revision) == (second.uid, True)
        # The first one has nothing to say any more.
        await lifecycles.begin_retirement(client, SPACE, first, "op-1")
        await lifecycles.finish_retirement(client, SPACE, first, "op-1")
        assert (await lifecycles.read_head(client, SPACE, first.principal))[0] == head
        await hand.client.request(head_subject(SPACE, first.principal), b"", headers=MARKER, timeout=10)
        with pytest.raises(InvalidHead, match=r"C13\.1-027"):
            await lifecycles.activate(client, SPACE, life("turn", uid_of("third")), MANAGER)
        unknown = life("nobody")
        await lifecycles.begin_retirement(client, SPACE, unknown, "op")
        await lifecycles.finish_retirement(client, SPACE, unknown, "op")


@pytest.mark.req("C13.1-021", "C13.1-022")
async def test_of_twenty_activations_one_wins(here: Space) -> None:
    async with as_(here, Profile.LIFECYCLES) as client:
        racers = [life("race", f"{n:026d}") for n in range(20)]
        for one in racers:
            await lifecycles.reserve(client, SPACE, one.uid, one.principal)
        done = await asyncio.gather(
            *(lifecycles.activate(client, SPACE, one, MANAGER) for one in racers), return_exceptions=True
        )
        won = [one for one in done if not isinstance(one, BaseException)]
        assert len(won) == 1
        assert all(isinstance(one, HeadRefused | Changed) for one in done if one not in won)
        head, _ = await lifecycles.read_head(client, SPACE, racers[0].principal)
        assert head == won[0][0]
        for one in racers:
            assert (await read_key(client, RECORDS, uid_subject(SPACE, one.uid))).value is not None


@pytest.mark.req("C13.1-013", "C13.1-012")
async def test_a_row_of_another_name_or_form_is_no_mapping(here: Space) -> None:
    bob = life("bob")
    async with as_(here, Profile.LIFECYCLES) as client:
        foreign = Head(Principal("local", "carol"), uid_of("carol"), MANAGER, 0, HeadState.ACTIVE)
        await write_key(client, head_subject(SPACE, bob.principal), foreign.encode(), 0)
        with pytest.raises(InvalidHead, match=r"C13\.1-013"):
            await lifecycles.read_head(client, SPACE, bob.principal)
        with pytest.raises(InvalidHead):
            await lifecycles.activate(client, SPACE, bob, MANAGER)


# ---- issuance ----


class Case:
    """One generation of a lifecycle, and how it is issued."""

    def __init__(self, actor: str, seconds: int = 3600) -> None:
        self.now = clock()
        self.ends = self.now + seconds
        self.life = life(actor)
        self.generation = new_generation(self.ends, os.urandom)
        self.token = os.urandom(16).hex()
        self.ref = Reference(SPACE, self.life, self.generation)

    async def issue(self, client: Client, **change: Any) -> None:
        generation, token = change.get("generation", self.generation), change.get("token", self.token)
        now = change.get("now", self.now)
        await issue(client, SPACE, self.life, generation, CEILING, self.ends, token, now=now)

    async def reusable(self, client: Client, **change: Any) -> str | None:
        lifecycle, now = change.get("life", self.life), change.get("now", self.now)
        return await reusable(client, SPACE, self.token, lifecycle, now=now)


@pytest.mark.req("C13.15-05", "C13.15-07", "C13.15-08", "C13.15-10", "C13.15-12", "C13.9-M07")
async def test_evidence_stands_and_is_released_before_anything_is_handed_out(here: Space) -> None:
    one = Case("issued")
    async with as_(here, Profile.ISSUER) as client, root(here) as hand:
        await issuance.prove_stores(client, SPACE)
        await one.issue(client)
        row = await read_first(client, ISSUED, evidence_subject(one.ref))
        assert row is not None
        assert read_evidence(one.ref, row) == Evidence(one.ref, CEILING, (), one.ends)
        assert await recorded(client, one.ref, CEILING, one.ends)
        attempt = await read_key(client, ISSUED, attempt_subject(one.ref))
        assert read_attempt(one.ref, attempt.value or b"") is AttemptState.ACTIVE
        accepted = await read_key(client, ACCEPTED, accepted_subject(SPACE, one.token))
        assert read_accepted(accepted.value or b"") == one.ref
        assert await one.reusable(client) == one.generation
        # A second write of evidence changes nothing for anybody who reads the first.
        await hand.client.request(evidence_subject(one.ref), b"{}", timeout=10)
        assert await read_first(client, ISSUED, evidence_subject(one.ref)) == row
        assert not await recorded(client, one.ref, Ceiling(Rule(None), Rule(())), one.ends)


@pytest.mark.req("C13.15-02", "C13.15-07", "C13.15-31")
async def test_a_generation_and_a_token_are_used_once(here: Space) -> None:
    one, other = Case("once"), Case("once")
    async with as_(here, Profile.ISSUER) as client:
        await one.issue(client)
        with pytest.raises(NotIssued, match="used before"):
            await one.issue(client, token=other.token)
        assert await read_key(client, ACCEPTED, accepted_subject(SPACE, other.token)) == (
            await read_key(client, ACCEPTED, accepted_subject(SPACE, "0" * 32))
        )
        with pytest.raises(NotIssued, match="taken"):
            await other.issue(client, token=one.token)
        assert await one.reusable(client) == one.generation


class Meddled:
    """A connection on which somebody else's write lands right after the given number of answers."""

    def __init__(self, client: Client, after: int, meddle: Callable[[], Awaitable[Any]]) -> None:
        self._client, self._left, self._meddle = client, after, meddle

    async def request(self, *args: Any, **more: Any) -> Any:
        answer = await self._client.request(*args, **more)
        self._left -= 1
        if self._left == 0:
            await self._meddle()
        return answer


@pytest.mark.req("C13.15-07")
async def test_an_attempt_that_somebody_ended_is_not_released(here: Space) -> None:
    one = Case("ended")
    async with as_(here, Profile.ISSUER) as client, root(here) as hand:

        async def abort() -> None:
            value = canonical(attempt_value(one.ref, AttemptState.ABORTED))
            await hand.client.request(attempt_subject(one.ref), value, timeout=10)

        with pytest.raises(NotIssued, match="ended the attempt"):
            await one.issue(Meddled(client, 2, abort))  # type: ignore[arg-type]
        attempt = await read_key(client, ISSUED, attempt_subject(one.ref))
        assert read_attempt(one.ref, attempt.value or b"") is AttemptState.ABORTED
        accepted = await read_key(client, ACCEPTED, accepted_subject(SPACE, one.token))
        assert (accepted.value, accepted.revision) == (None, 0)


@pytest.mark.req("C13.15-03", "C13.15-13")
async def test_at_its_horizon_nothing_is_issued_or_used_again(here: Space) -> None:
    one = Case("over")
    async with as_(here, Profile.ISSUER) as client:
        for at in (one.ends, one.ends + 5):
            with pytest.raises(NotIssued, match="horizon"):
                await one.issue(client, now=at)
        assert await read_first(client, ISSUED, evidence_subject(one.ref)) is None
        await one.issue(client)
        with pytest.raises(NotIssued, match="horizon"):
            await one.reusable(client, now=one.ends)


@pytest.mark.req("C13.15-31", "C13.15-11")
async def test_a_row_that_is_not_the_own_live_one_is_never_used_or_replaced(here: Space) -> None:
    async with as_(here, Profile.ISSUER) as client:
        for actor, broken in (
            ("foreign", lambda one: accepted_value(Reference(SPACE, life("mallory"), one.generation))),
            ("unreleased", lambda one: accepted_value(one.ref)),
            ("garbage", lambda one: {"version": 9}),
        ):
            one = Case(actor)
            await write_key(client, accepted_subject(SPACE, one.token), canonical(broken(one)), 0)
            with pytest.raises(NotIssued):
                await one.reusable(client)
            with pytest.raises(NotIssued, match="taken"):
                await one.issue(client)
        assert await Case("free").reusable(client) is None


@pytest.mark.req("C13.15-12")
async def test_the_broker_forgets_every_row_a_minute_after_the_horizon(here: Space) -> None:
    one = Case("short", seconds=5)
    # Issued as late as it could be: its rows live for a second.
    async with as_(here, Profile.ISSUER) as client, root(here) as hand:
        await one.issue(client, now=one.ends - 1)
        for stream, subject in (
            (ISSUED, evidence_subject(one.ref)), (ISSUED, attempt_subject(one.ref)),
            (ACCEPTED, accepted_subject(SPACE, one.token)),
        ):  # fmt: skip
            reply = await hand.client.request(
                f"$JS.API.STREAM.MSG.GET.{stream}", json.dumps({"last_by_subj": subject}).encode(), timeout=10
            )
            told = base64.b64decode(json.loads(reply.data)["message"]["hdrs"])
            assert b"Nats-TTL: 61s" in told


@pytest.mark.req("C13.15-09", "C13.12-21")
async def test_a_store_of_another_making_is_refused_at_bind(tmp_path: Path) -> None:
    async with SpaceBroker(tmp_path) as broker:
        space = Space(broker, Form.MEDIATED)
        await broker.push(space.trust.account_token(broker.trust, clock()))
        async with root(space) as hand, as_(space, Profile.ISSUER) as client:
            with pytest.raises(BrokerRefused):
                await issuance.prove_stores(client, SPACE)
            old = {"name": ISSUED, "subjects": [buckets.ISSUED.everything(SPACE)], "max_age": 10**12}
            await hand.client.request(f"$JS.API.STREAM.CREATE.{ISSUED}", json.dumps(old).encode(), timeout=10)
            with pytest.raises(NotIssued, match="allow_msg_ttl"):
                await issuance.prove_stores(client, SPACE)
