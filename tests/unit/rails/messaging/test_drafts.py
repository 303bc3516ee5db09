"""What a caller wants to say becomes one message on one subject, or is refused before anything is sent."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from sidecar.rails.envelopes.errors import EnvelopeError, TooLarge
from sidecar.rails.envelopes.message import ArtifactPart, DataPart, EndpointRef, TextPart, decode
from sidecar.rails.envelopes.presence import Card, Presence
from sidecar.rails.envelopes.schema import Status
from sidecar.rails.messaging.drafts import Channel, Direct, Draft, Extras, Role, Target, draft, header_bytes, mentioned
from sidecar.rails.messaging.identity import Identity
from sidecar.rails.messaging.roster import Roster, Row
from sidecar.rails.messaging.sending import Patience
from sidecar.rails.names import InvalidName, Lifecycle, Principal
from sidecar.rails.names.api import RESERVED_ROOTS, reserved
from sidecar.rails.names.limits import DUPLICATE_WINDOW_SECONDS
from sidecar.rails.space.holder import Form

ALICE = Principal("local", "alice")
IDENTITY = Identity("main", Form.MEDIATED, Lifecycle(ALICE, "a1" * 13), "U" * 56, (), (), (), 1)
REF = EndpointRef("local.alice", "Alice", "planner")
NOW = 1_800_000_000_000


def made(target: Target, content: Any = "hi", extras: Extras | None = None, **more: Any) -> Draft:
    values: dict[str, Any] = {"now_ms": NOW, "entropy": bytes(10), "max_payload": 1 << 20, **more}
    return draft(IDENTITY, REF, target, content, extras or Extras(), **values)


@pytest.mark.req("C4-01", "C5-01", "C5-02", "C5-03", "C5-04", "C8-60", "C12-01", "C12-02", "C12-04", "C3-04")
@pytest.mark.parametrize(
    ("target", "subject", "field", "value"),
    [
        (Channel("team.backend"), "cotal.main.chat.local.alice.team.backend", "channel", "team.backend"),
        (Direct(Principal("u_" + "a" * 26, "bob")), f"cotal.main.inst.u_{'a' * 26}.bob.local.alice", "to", None),
        (Role("reviewer"), "cotal.main.svc.reviewer.local.alice", "toService", "reviewer"),
    ],
)
def test_a_message_has_one_route_and_one_sender(target: Target, subject: str, field: str, value: str | None) -> None:
    found = made(target)
    members = orjson.loads(found.data)
    assert found.subject == subject
    assert {name for name in ("channel", "to", "toService") if name in members} == {field}
    assert members[field] == (value or f"u_{'a' * 26}.bob")
    assert members["from"] == {"id": "local.alice", "name": "Alice", "role": "planner"}
    assert members["ts"] == NOW
    assert members["id"] == found.message_id
    assert found.headers == {"Nats-Msg-Id": found.message_id}
    assert decode(found.data).sender == REF


@pytest.mark.req("C3-11", "C3-12", "C3-13", "C3-15")
def test_a_post_goes_to_a_concrete_channel_as_it_is_spelled_on_the_wire() -> None:
    found = made(Channel("Team A.back/end"))
    assert found.subject.endswith(".chat.local.alice.Team_A.back_end")
    assert decode(found.data).channel == "Team_A.back_end"
    for channel in ("team.>", "*", "a.*.b", "", "a..b", ".a", "a" * 4097):
        with pytest.raises(InvalidName):
            made(Channel(channel))
    assert made(Channel("a" * 4096)).subject.endswith("a" * 4096)


@pytest.mark.req("C3-16", "C3-17")
@pytest.mark.parametrize("role", [" probe ", "pro.be", "", "*", ">", "r" * 65])
def test_a_role_is_one_token_and_never_rewritten(role: str) -> None:
    with pytest.raises(InvalidName):
        made(Role(role))


@pytest.mark.req("C3-19")
@pytest.mark.parametrize("root", [*RESERVED_ROOTS, "_INBOX_x."])
def test_no_message_gets_below_a_reserved_root(root: str) -> None:
    assert not reserved(made(Channel(f"{root}x")).subject)


@pytest.mark.req("C4-24", "C5-02")
def test_ids_are_fresh_unless_the_caller_sends_again() -> None:
    ids = {made(Channel("x"), entropy=number.to_bytes(10, "big")).message_id for number in range(100)}
    assert len(ids) == 100
    again = made(Channel("x"), extras=Extras(message_id="mine-1"))
    assert (again.message_id, again.headers["Nats-Msg-Id"]) == ("mine-1", "mine-1")
    for bad in ("", "with space", "x" * 300):
        with pytest.raises(EnvelopeError):
            made(Channel("x"), extras=Extras(message_id=bad))


@pytest.mark.req("C5-05", "C5-06", "C5-07")
def test_mentions_are_lowered_and_what_is_not_said_is_not_there() -> None:
    full = decode(made(Channel("x"), extras=Extras(["Bob", " bob", ""], "m0", "ctx-1")).data)
    assert (full.mentions, full.reply_to, full.context_id) == (("bob",), "m0", "ctx-1")
    assert {"mentions", "replyTo", "contextId"}.isdisjoint(orjson.loads(made(Channel("x")).data))


@pytest.mark.req("C5-08", "C5-09", "C5-10")
def test_parts_are_what_json_can_say() -> None:
    parts = [TextPart("a"), DataPart({"b": None}), ArtifactPart("f", "text/plain", f"sha256:{'0' * 64}", 7)]
    assert decode(made(Channel("x"), parts).data).parts == tuple(parts)
    with pytest.raises(EnvelopeError) as nan:
        made(Channel("x"), [DataPart({"a": [1, float("nan")]})])
    assert nan.value.field == "parts[0].data.a[1]"
    wrong: list[Any] = [
        b"bytes",
        7,
        None,
        {"kind": "text"},
        [{"kind": "text", "text": "x"}],
        ("text",),
        TextPart("bare"),
    ]
    for content in wrong:
        with pytest.raises(EnvelopeError):
            made(Channel("x"), content)


@pytest.mark.req("C5-19")
def test_a_message_fits_into_what_the_broker_takes_with_its_headers() -> None:
    found = made(Channel("x"))
    whole = len(found.data) + header_bytes(found.headers)
    assert made(Channel("x"), max_payload=whole).data == found.data
    with pytest.raises(TooLarge) as error:
        made(Channel("x"), max_payload=whole - 1)
    assert "artifact" in str(error.value)
    with pytest.raises(TooLarge):
        made(Channel("x"), max_payload=1)


def row(actor: str, name: str, status: Status = Status.IDLE) -> Row:
    principal = Principal("local", actor)
    return Row(principal, Presence(Card(principal.dot, name), status, NOW))


@pytest.mark.req("C4-15")
def test_a_mention_names_live_peers_by_their_lowered_name() -> None:
    rows = [row("b1", "Bob"), row("b2", "bob "), row("c", "Carol"), row("d", "Dan", Status.OFFLINE)]
    roster = Roster({one.principal.dot: one for one in rows}, (), NOW)
    found = mentioned(["BOB", "carol", "Dan", "eve", ""], roster)
    assert {name: [one.actor for one in who] for name, who in found.items()} == {
        "bob": ["b1", "b2"],
        "carol": ["c"],
        "dan": [],
        "eve": [],
    }


@pytest.mark.parametrize("within", [0.0, 1.0, 30.0, 1e9])
def test_a_message_is_tried_again_well_within_the_duplicate_window(within: float) -> None:
    patience = Patience(within)
    elapsed, attempt = 0.0, 0
    while (wait := patience.wait(attempt + 1, elapsed)) is not None:
        attempt += 1
        assert 0 < wait <= 2.0
        elapsed += wait
    assert elapsed < min(within or 1.0, DUPLICATE_WINDOW_SECONDS / 2)
    assert attempt < 40
