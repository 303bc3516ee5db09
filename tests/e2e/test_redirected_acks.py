"""A member has the broker acknowledge a post of its own on a key that it may not write.

The broker checks no reply subject, so that every member of a space can bring that about, whatever its form. What stood
there is gone then. The acknowledgement is never taken for what belongs there: nobody has more authority by it, and who
hangs on the key is refused.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sidecar.app.endpoint_host import deregister, host, retire
from sidecar.rails.connection import Connection, State
from sidecar.rails.endpoint.codes import CallError, CallRefused, Code
from sidecar.rails.endpoint.contracts import KNOWN
from sidecar.rails.names import buckets, planes, subjects
from sidecar.rails.names.principals import LOCAL_OWNER
from sidecar.rails.names.tokens import endpoint_token
from sidecar.rails.planes.registration.faults import Corrupt
from sidecar.rails.planes.registration.naming import Place
from sidecar.rails.space.heads import head_subject
from sidecar.rails.space.holder import Profile
from sidecar.rails.space.keys import Kept, read_key
from tests.e2e.registering import ME, NAME, site
from tests.e2e.registry_town import ECHO, SAMPLE, Town, sample, town
from tests.e2e.space_broker import EVENT_SECONDS
from tests.e2e.space_members import SPACE

pytestmark = pytest.mark.asyncio

ACK = {"stream", "seq"}


async def acknowledged_on(made: Town, eve: Connection, bucket: buckets.Bucket, subject: str) -> None:
    """A message of eve to herself, whose acknowledgement stands at a key when this returns."""
    own = subjects.INST.build(space=SPACE, owner="local", actor="eve", to_owner="local", to_actor="eve")
    await eve.publish(own, b"to myself", reply=subject)
    async with made.profile(Profile.REGISTRAR) as client, asyncio.timeout(EVENT_SECONDS):
        while not _is_ack(await read_key(client, bucket.stream(SPACE), subject)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _is_ack(kept: Kept) -> bool:
    return kept.value is not None and json.loads(kept.value).keys() == ACK


@pytest.mark.req("C13.12-17", "C13.7-43")
async def test_an_acknowledgement_on_a_key_of_the_control_surface_gives_nobody_anything(tmp_path: Path) -> None:
    async with (
        town(tmp_path) as made,
        made.registry(),
        made.site.serve(sample()) as served,
        made.caller("alice", ECHO, contracts={**KNOWN, SAMPLE: sample().contracts}) as alice,
        made.caller("eve") as eve,
    ):
        identity = served.identity
        assert identity is not None
        place = Place(SPACE, SAMPLE, identity.instance)
        assert await alice.caller.call(SAMPLE, "echo", "before") == "before"
        assert [one["endpoint"] for one in (await alice.caller.endpoints()).rows] == [SAMPLE, "registry"]

        await acknowledged_on(made, eve.connection, buckets.RECORDS, head_subject(SPACE, identity.lifecycle.principal))
        args = {"owner": LOCAL_OWNER, "actor": identity.lifecycle.principal.actor}
        with pytest.raises(CallRefused) as unread:
            await alice.caller.call("registry", "target", args)
        assert unread.value.code == Code.UNAVAILABLE

        await acknowledged_on(made, eve.connection, buckets.AUTH, place.gate)
        for subject in (place.spec, place.status, place.govern):
            await acknowledged_on(made, eve.connection, buckets.RECORDS, subject)
        assert await alice.caller.call("registry", "instances", {"endpoint": SAMPLE}) == {"rows": []}
        assert SAMPLE not in [one["endpoint"] for one in (await alice.caller.endpoints()).rows]
        assert await eve.caller.call("registry", "instances", {"endpoint": SAMPLE}) == {"rows": []}
        # No second process is let in over what cannot be read, and the first one still answers.
        with pytest.raises(Corrupt):
            await host(*_site(made), sample(), owner=LOCAL_OWNER, instance=identity.instance)
        assert await alice.caller.call(SAMPLE, "echo", "after") == "after"


def _site(made: Town) -> tuple[Path, str, str]:
    where = made.site.where
    return where.root, where.space, where.url


@pytest.mark.req("C13.8-10", "C13.3-54")
async def test_an_acknowledgement_on_a_stream_is_no_report_and_no_event(tmp_path: Path) -> None:
    async with town(tmp_path) as made, made.registry(), made.site.serve(sample()) as served, made.caller("eve") as eve:
        identity = served.identity
        assert identity is not None
        token = endpoint_token(SAMPLE)
        own = subjects.INST.build(space=SPACE, owner="local", actor="eve", to_owner="local", to_actor="eve")
        report = planes.RECORD_WRITE.build(
            space=SPACE,
            endpoint=token,
            instance=identity.instance,
            epoch=identity.epoch,
            kind="svc",
            qualifier=f"{token}.{identity.instance}",
        )
        await eve.connection.publish(own, b"to myself", reply=report)
        async with asyncio.timeout(EVENT_SECONDS):
            while ("bad-request",) not in made.metrics.totals("registration_record_writes"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await made.state(SAMPLE, identity.instance) == "ready"


async def test_a_description_whose_artifacts_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """An acknowledgement over an artifact hides it; it never passes for the document."""
    async with town(tmp_path) as made, made.site.serve(sample()), made.caller("eve") as eve:
        digest = sample().surface.digests[0]
        own = subjects.INST.build(space=SPACE, owner="local", actor="eve", to_owner="local", to_actor="eve")
        stands = planes.CONTRACT.build(space=SPACE, digest=digest.removeprefix("sha256:"))
        await eve.connection.publish(own, b"to myself", reply=stands)
        async with made.registry(), made.caller("alice", ECHO) as alice:
            with pytest.raises(CallError):
                await alice.caller.contract(SAMPLE, "echo", seconds=5.0)


@pytest.mark.req("C13.1-034", "C13.1-075")
async def test_an_instance_whose_gate_is_spoilt_is_evicted_all_the_same(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        hosted = await here.host()
        async with await Connection.open([here.broker.url], hosted.minter) as connection:
            hosted.close()
            place = Place(SPACE, NAME, ME)
            event = planes.EVENT.build(
                space=SPACE, endpoint=place.token, instance=ME, epoch=hosted.identity.epoch, topic="ev.x_y.happened"
            )
            # Its gate, and a row of the ledger that nobody has written.
            for subject in (place.gate, place.credential("A" * 56)):
                await connection.publish(event, b"{}", reply=subject)
                async with asyncio.timeout(EVENT_SECONDS):
                    while not _is_ack(await here.kept(buckets.AUTH, subject)):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            with pytest.raises(Corrupt):
                await hosted.minter()
            for end in (deregister, retire):  # it may be tried again, and says so again
                with pytest.raises(Corrupt):
                    await end(here.root, SPACE, here.broker.url, NAME, ME)
                async with asyncio.timeout(EVENT_SECONDS):
                    while connection.state is State.CONNECTED:  # noqa: ASYNC110 - its end has no event here
                        await asyncio.sleep(0.005)
