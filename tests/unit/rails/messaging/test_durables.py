"""What a frame of a durable has to be, before anything in it is believed."""

from __future__ import annotations

import orjson
import pytest

from sidecar.rails.envelopes import backstop
from sidecar.rails.envelopes.receive import Reason, Rejected
from sidecar.rails.messaging.durables import Durable, Odd, judge
from sidecar.rails.messaging.frames import Frame
from sidecar.rails.names import Lifecycle, Principal
from sidecar.rails.names.headers import PROVENANCE

BOB = Lifecycle(Principal("local", "bob"), "b" * 26)
DM = Durable.dm("main", BOB)
DLV = Durable.backstop("main", BOB)
ROLE = Durable.of_role("main", "reviewer")
GOOD = {
    DM: "cotal.main.inst.local.bob.local.alice",
    DLV: f"cotal.main.dlv.local.bob.{BOB.uid}",
    ROLE: "cotal.main.svc.reviewer.local.alice",
}


def document(**changes: object) -> bytes:
    sender = {"id": "local.alice", "name": "alice"}
    whole = {"id": "m1", "ts": 1, "space": "main", "from": sender, "parts": [{"kind": "text", "text": "hi"}], **changes}
    return orjson.dumps({name: value for name, value in whole.items() if value is not ...})


def frame(subject: str, data: bytes = b"", headers: dict[str, str] | None = None) -> Frame:
    return Frame(subject, data, headers or {}, 1, 1, 0, 1, "1.1.1.1.0")


def test_the_durables_of_a_lifecycle_are_those_that_were_provisioned() -> None:
    assert (DM.stream, DM.consumer) == ("DM_main", f"dm_local-bob-{BOB.uid}")
    assert (DLV.stream, DLV.consumer) == ("DLV_main", f"dlv_local-bob-{BOB.uid}")
    assert (ROLE.stream, ROLE.consumer, ROLE.role) == ("TASK_main", "svc_reviewer", "reviewer")


@pytest.mark.parametrize("durable", list(GOOD))
def test_a_frame_of_the_own_durable_is_read(durable: Durable) -> None:
    assert durable.odd(frame(GOOD[durable], headers={"X": "1"})) is None


@pytest.mark.req("C13.3-02", "C13.3-03")
@pytest.mark.parametrize("durable", list(GOOD))
@pytest.mark.parametrize("name", [*sorted(PROVENANCE), *(one.upper() for one in sorted(PROVENANCE))])
def test_stored_bytes_are_not_read_as_a_delivery(durable: Durable, name: str) -> None:
    assert durable.odd(frame(GOOD[durable], headers={name: ""})) is Odd.PROVENANCE


@pytest.mark.parametrize(
    ("durable", "subject"),
    [
        (DM, "cotal.main.inst.local.carol.local.alice"), (DM, "cotal.main.chat.local.bob.general"),
        (DM, "cotal.other.inst.local.bob.local.alice"), (DM, "cotal.main.inst.local.bob"), (DM, "_INBOX_x.s.1"),
        (DLV, f"cotal.main.dlv.local.bob.{'c' * 26}"), (DLV, f"cotal.main.dlv.local.bob.{BOB.uid}.x"),
        (ROLE, "cotal.main.svc.other.local.alice"), (ROLE, "$KV.cotal_presence_main.local.alice"), (DM, ""),
    ],
)  # fmt: skip
def test_what_was_stored_elsewhere_is_not_read(durable: Durable, subject: str) -> None:
    assert durable.odd(frame(subject)) is Odd.FOREIGN


def test_a_direct_message_and_a_request_are_judged_by_their_subject() -> None:
    received = judge(frame(GOOD[DM], document(to="local.bob")), DM, mediated=True)
    assert (received.meta.kind, received.meta.sender, received.meta.target) == ("dm", "local.alice", "local.bob")
    received = judge(frame(GOOD[ROLE], document(toService="reviewer")), ROLE, mediated=True)
    assert (received.meta.kind, received.meta.target) == ("anycast", "reviewer")


@pytest.mark.req("C4-05")
def test_a_backstop_copy_is_a_post_on_the_channel_that_its_headers_name() -> None:
    headers = backstop.encode("cotal.main.chat.local.alice.general", 7, backstop.Why.CHANNEL, "m1", BOB)
    received = judge(frame(GOOD[DLV], document(channel="general"), headers), DLV, mediated=True)
    assert (received.meta.kind, received.meta.sender, received.meta.target) == ("channel", "local.alice", "general")
    with pytest.raises(Rejected) as error:
        judge(frame(GOOD[DLV], document(channel="general")), DLV, mediated=True)
    assert error.value.reason is Reason.MALFORMED_SUBJECT


@pytest.mark.req("C8-38", "C4-27", "C5-14")
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (document(to="local.bob", **{"from": {"id": "local.carol", "name": "x"}}), Reason.SENDER_MISMATCH),
        (b"{", Reason.MALFORMED_JSON),
        (document(to="local.bob", id=5), Reason.MALFORMED_ENVELOPE),
        (document(to="local.carol"), Reason.ROUTING_MISMATCH),
    ],
)
def test_what_is_never_shown_is_refused_for_good(data: bytes, reason: Reason) -> None:
    with pytest.raises(Rejected) as error:
        judge(frame(GOOD[DM], data), DM, mediated=True)
    assert error.value.reason is reason
    if reason is Reason.ROUTING_MISMATCH:
        assert judge(frame(GOOD[DM], data), DM, mediated=False).meta.mismatched
