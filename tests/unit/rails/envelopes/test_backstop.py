"""The headers of a backstop copy, there and back."""

from __future__ import annotations

import pytest

from sidecar.rails.envelopes.backstop import Copy, MalformedCopy, Why, decode, encode, handed_off, limit_of
from sidecar.rails.names import headers
from sidecar.rails.names.limits import COPY_HEADROOM, MAX_CHANNEL, MAX_MESSAGE_ID, MAX_SAFE_INTEGER, MAX_TOKEN
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.subjects import CHAT, INST, delivery_of

BOB = Lifecycle(Principal("local", "bob"), "b" * 26)
SUBJECT = CHAT.build(space="main", owner="local", actor="alice", channel="team.x")


@pytest.mark.parametrize("why", list(Why))
@pytest.mark.parametrize("message_id", ["m-1", ""])
def test_what_is_written_is_read(why: Why, message_id: str) -> None:
    written = encode(SUBJECT, 17, why, message_id, BOB)
    copy = decode(written, "main")
    assert copy == Copy(SUBJECT, delivery_of(SUBJECT), 17, why)  # type: ignore[arg-type]
    assert (copy.channel, copy.delivery.sender, copy.delivery.shown) == ("team.x", "local.alice", "channel")


@pytest.mark.req("C8-50")
def test_a_copy_is_named_by_its_message_and_member() -> None:
    assert encode(SUBJECT, 17, Why.CHANNEL, "m-1", BOB)[headers.MESSAGE_ID] == f"m-1:local.bob:{BOB.uid}"
    by_mention = encode(SUBJECT, 17, Why.MENTION, "m-1", BOB)
    assert by_mention[headers.MESSAGE_ID] == f"m-1:local.bob:{BOB.uid}"


@pytest.mark.req("C8-59", "C4-21")
def test_a_copy_of_a_message_with_an_empty_id_has_no_message_id() -> None:
    written = encode(SUBJECT, 17, Why.CHANNEL, "", BOB)
    assert headers.MESSAGE_ID not in written
    assert headers.MESSAGE_ID not in handed_off(written, 5)


@pytest.mark.parametrize(
    "message_id", ["a b", " a", "a\r\nNats-Rollup: all", "é", "\ud800", "x" * (MAX_MESSAGE_ID + 1)]
)
def test_an_id_that_no_header_can_hold_is_named_by_its_digest(message_id: str) -> None:
    identity = encode(SUBJECT, 17, Why.CHANNEL, message_id, BOB)[headers.MESSAGE_ID]
    digest, _, member = identity.partition(":")
    assert digest.startswith("=sha256=")
    assert len(digest) == len("=sha256=") + 64
    assert member == f"local.bob:{BOB.uid}"
    others = {encode(SUBJECT, 17, Why.CHANNEL, one, BOB)[headers.MESSAGE_ID] for one in (message_id, message_id + "!")}
    assert len(others) == 2


@pytest.mark.req("C8-54")
@pytest.mark.parametrize(("limit", "stamp"), [(1000, "1000"), (1, "1"), (None, "none")])
def test_a_handed_off_copy_says_the_count(limit: int | None, stamp: str) -> None:
    written = encode(SUBJECT, 17, Why.CHANNEL, "m-1", BOB)
    found = handed_off({**written, "Nats-Rollup": "all", "Other": "x"}, limit)
    assert found == {**written, headers.DELIVERY_LIMIT: stamp}
    assert limit_of(found) == limit


@pytest.mark.req("C8-55")
@pytest.mark.parametrize("stamp", [None, "", "-1", "1.5", "01", "many", "9" * 17, " 5"])
def test_a_copy_without_a_readable_stamp_counts_as_1000(stamp: str | None) -> None:
    assert limit_of({} if stamp is None else {headers.DELIVERY_LIMIT: stamp}) == 1000


@pytest.mark.parametrize(
    "change",
    [
        {headers.COPY_SUBJECT: None},
        {headers.COPY_SUBJECT: "x"},
        {headers.COPY_SUBJECT: SUBJECT.replace("main", "other")},
        {headers.COPY_SUBJECT: SUBJECT.replace("local", "p_" + "a" * 26)},
        {headers.COPY_SUBJECT: SUBJECT.replace("team.x", "team.>")},
        {
            headers.COPY_SUBJECT: INST.build(
                space="main", to_owner="local", to_actor="bob", owner="local", actor="alice"
            )
        },
        {headers.COPY_SEQUENCE: None},
        {headers.COPY_SEQUENCE: "0"},
        {headers.COPY_SEQUENCE: "-1"},
        {headers.COPY_SEQUENCE: "1e3"},
        {headers.COPY_SEQUENCE: str(MAX_SAFE_INTEGER + 1)},
        {headers.COPY_WHY: None},
        {headers.COPY_WHY: "gossip"},
    ],
)
def test_what_is_no_copy_is_refused(change: dict[str, str | None]) -> None:
    written = encode(SUBJECT, 17, Why.CHANNEL, "m-1", BOB)
    spoilt = {name: value for name, value in {**written, **change}.items() if value is not None}
    with pytest.raises(MalformedCopy):
        decode(spoilt, "main")


def test_the_headers_of_the_longest_copy_have_room() -> None:
    name = "a" * MAX_TOKEN
    subject = CHAT.build(space=name, owner=name, actor=name, channel="c" * MAX_CHANNEL)
    member = Lifecycle(Principal(name, name), "u" * 32)
    found = handed_off(encode(subject, MAX_SAFE_INTEGER, Why.CHANNEL, "x" * MAX_MESSAGE_ID, member), MAX_SAFE_INTEGER)
    block = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in found.items()) + "\r\n"
    assert len(block) < COPY_HEADROOM
