"""The messages and principals of the specification's vectors (C12-15, C12-23, C12-24)."""

from __future__ import annotations

from typing import Any

from sidecar.rails.envelopes.message import EndpointRef, Message, TextPart
from sidecar.rails.names.subjects import Delivery

OWNER_A = "u_aaaaaaaaaaaaaaaaaaaaaaaaaa"
OWNER_B = "u_bbbbbbbbbbbbbbbbbbbbbbbbbb"
ALICE, BOB = f"{OWNER_A}.alice", f"{OWNER_B}.bob"
DIGEST = "sha256:" + "0123456789abcdef" * 4

MULTICAST_TEXT = (
    b'{"id":"018f1d0a-0000-7000-9000-000000000001","ts":1710000000000,"space":"main",'
    b'"from":{"id":"u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice","name":"alice","role":"planner"},'
    b'"channel":"team.backend","mentions":["bob"],"contextId":"ctx-1",'
    b'"parts":[{"kind":"text","text":"Can you review this?"}]}'
)
UNICAST_TEXT = (
    b'{"id":"018f1d0a-0000-7000-9000-000000000002","ts":1710000001000,"space":"main",'
    b'"from":{"id":"u_aaaaaaaaaaaaaaaaaaaaaaaaaa.alice","name":"alice"},'
    b'"to":"u_bbbbbbbbbbbbbbbbbbbbbbbbbb.bob","parts":[{"kind":"text","text":"Direct note."}]}'
)
MULTICAST = Message(
    id="018f1d0a-0000-7000-9000-000000000001",
    ts=1710000000000,
    space="main",
    sender=EndpointRef(ALICE, "alice", "planner"),
    parts=(TextPart("Can you review this?"),),
    channel="team.backend",
    mentions=("bob",),
    context_id="ctx-1",
)
UNICAST = Message(
    id="018f1d0a-0000-7000-9000-000000000002",
    ts=1710000001000,
    space="main",
    sender=EndpointRef(ALICE, "alice"),
    parts=(TextPart("Direct note."),),
    to=BOB,
)
CHAT = Delivery("chat", "main", OWNER_A, "alice", "team.backend")
INST = Delivery("inst", "main", OWNER_A, "alice", BOB)
SVC = Delivery("svc", "main", OWNER_A, "alice", "reviewer")


def document(**changes: Any) -> dict[str, Any]:
    """A valid post as a parsed document; a change to ``...`` removes the member."""
    value: dict[str, Any] = {
        "id": "m-1",
        "ts": 1710000000000,
        "space": "main",
        "from": {"id": ALICE, "name": "alice"},
        "channel": "team.backend",
        "parts": [{"kind": "text", "text": "hello"}],
    }
    value.update(changes)
    return {name: member for name, member in value.items() if member is not ...}
