"""Submissions are requests on a subject of their own, and what a request carries gives nobody any right (13.3)."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.rails.endpoint.codes import Code, Refusal
from sidecar.rails.endpoint.envelope import Body, read_request
from sidecar.rails.endpoint.judge import Accepted, Discard, Ignored
from sidecar.rails.names import endpoint
from sidecar.rails.names.endpoint import UNTARGETED, parse_request, parse_submission
from sidecar.rails.names.errors import InvalidName
from tests.unit.rails.endpoint.samples import BOB_UID, CALLER, TARGET, body, judged, subject

ROOT = Path(__file__).resolve().parents[4]
NAMED = {"to_owner": "local", "to_actor": "bob", "to_uid": BOB_UID}


def submission(mode: str) -> str:
    """The subject on which alice submits `start`."""
    template = endpoint.SUBMISSIONS[mode]
    names = {**CALLER, "endpoint": "delivery", "command": "start", **NAMED}
    return template.build(**{name: value for name, value in names.items() if name in template.fields})


@pytest.mark.req("C13.3-53", "C13.2-60")
@pytest.mark.parametrize("mode", endpoint.SUBMISSIONS)
def test_a_submission_is_a_request_without_a_nonce_read_by_the_same_reader(mode: str) -> None:
    at = submission(mode)
    told: dict[str, Any] = {"target": TARGET} if mode not in (UNTARGETED, "self") else {}
    sent = body("start", replyExpected=False, deadlineMs=30_000, **told)
    found, asked = read_request(Body(json.dumps(sent).encode())), parse_submission(at)
    assert (asked.mode, asked.sender) == (mode, found.sender.id)
    assert (asked.values["command"], found.contract_class, found.reply_expected) == ("start", "journal", False)
    assert (found.goal, found.deadline_ms) == ("g1", 30_000)
    targets = (found.target.owner, found.target.actor, found.target.lifecycle_uid) if found.target else ()
    assert list(asked.target.values()) == list(targets[: len(asked.target)])
    # The same block as in the request of the same command, and never one of the request rails.
    request = parse_request(subject("start", mode=mode))
    assert (request.mode, request.target, request.sender) == (asked.mode, asked.target, asked.sender)
    with pytest.raises(InvalidName):
        parse_request(at)
    with pytest.raises(InvalidName):
        parse_submission(f"{at}.{CALLER['nonce']}")
    assert judged(sent, at) == Discard(Ignored.NO_SENDER)


@pytest.mark.req("C13.3-53")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"v": 2}, Code.UNSUPPORTED_VERSION),
        ({"id": "a.b"}, Code.BAD_REQUEST),
        ({"op": {"endpoint": "delivery"}}, Code.OP_MISMATCH),
        ({"class": None}, Code.CLASS_MISMATCH),
        ({"target": {"owner": "local"}}, Code.TARGET_MISMATCH),
        ({"from": {"id": "local.alice"}}, Code.SENDER_MISMATCH),
        ({"deadlineMs": 0}, Code.BAD_REQUEST),
    ],
)
def test_a_wrong_submission_has_the_code_of_a_wrong_request(changes: dict[str, Any], code: Code) -> None:
    sent = json.dumps(body("start", replyExpected=False, **changes)).encode()
    with pytest.raises(Refusal) as caught:
        read_request(Body(sent))
    assert caught.value.code is code


@pytest.mark.req("C13.3-56", "C13.3-57")
def test_what_a_request_carries_as_auth_is_kept_as_it_is_and_read_by_no_code() -> None:
    """Nothing here redeems: no decision and no credential may come of the opaque text."""
    for text in ("x", ' {"b": 1,"a":2} ', "\u00e9", "e\u0301"):
        verdict, plain = judged(body(auth=text)), judged(body())
        assert isinstance(verdict, Accepted)
        assert isinstance(plain, Accepted)
        assert (verdict.request.auth, plain.request.auth) == (text, None)
        assert json.loads(verdict.request.encode())["auth"] == text
        assert verdict[1:] == plain[1:]
    readers = set()
    for path in sorted((ROOT / "sidecar" / "rails").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        reads = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "auth"]
        if reads:
            readers.add(path.name)
    assert readers == {"envelope.py"}, "only the codec touches the slot"
