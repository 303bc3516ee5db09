"""The JavaScript codec of the endpoint rails gives every vector of the contract, so that it is a reading of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.strictjson import canonical
from sidecar.rails.endpoint.contracts import closure_digest
from sidecar.rails.names.endpoint import parse_request
from tests.interop.js.driver import JsFailed, JsProgram

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWNER, UID = "u_abcdefghijklmnopqrstuvwxyz", "0123456789abcdefghijklmnop"
CALLER = {"owner": OWNER, "actor": "alice", "uid": UID}
TRIPLE = f"{OWNER}.alice.{UID}"
INSTANCE, GENERATION, NONCE = "i0123456789abcdefghijklmno", "0123456789abcdef" * 2, "A" * 22
WORKER = {"owner": OWNER, "actor": "worker1", "uid": "zyxwvutsrqponmlkjihgfedcba"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def codec() -> AsyncIterator[JsProgram]:
    async with JsProgram("caller.mjs") as program:
        yield program


@pytest.mark.req("C13.7-27", "C13.7-28")
@pytest.mark.parametrize(
    "value",
    [
        {"type": "null"},
        {"b": 1, "a": [1e21, 0.1, -0.0, 5e-324, 1.0, 9007199254740991], "\u20ac": '\u0000\u007f\u2028"\\'},
        {"\ufb33": 1, "\U0001f600": 2, "": {"z": None, "y": True}},
    ],
)
async def test_canonical_json_and_digests_are_those_of_our_codec(codec: JsProgram, value: Any) -> None:
    found = await codec.do("codec", value=value)
    assert found["canonical"].encode() == canonical(value)
    assert found["closure"] == closure_digest(value)


@pytest.mark.req("C13.7-26", "C13.7-28")
async def test_the_void_schema_has_its_golden_digests(codec: JsProgram) -> None:
    found = await codec.do("codec", value={"type": "null"})
    assert found["digest"] == "sha256:bcde375ebd4cbacf651311181173836b169d5a360c6ac158c6a2cdaf49be3f61"
    assert found["closure"] == "sha256:1db0472aaee8e6b9d8d3d430ee021a1b6efc559ab7c0b99186898c972c53dd2d"


SUBJECTS = [
    ({"command": "echo"}, f"cotal.demo.ep.one.com_acme_echo.echo.{TRIPLE}.{NONCE}"),
    ({"command": "drain", "to": {"mode": "self"}}, f"cotal.demo.ep.one.com_acme_echo.drain.self.{TRIPLE}.{NONCE}"),
    (
        {"command": "drain", "to": {"mode": "owner", "owner": OWNER}},
        f"cotal.demo.ep.one.com_acme_echo.drain.owner.{OWNER}.{TRIPLE}.{NONCE}",
    ),
    (
        {"command": "drain", "to": {"mode": "handle", **WORKER}},
        f"cotal.demo.ep.one.com_acme_echo.drain.handle.{OWNER}.worker1.{WORKER['uid']}.{TRIPLE}.{NONCE}",
    ),
    (
        {"command": "echo", "route": "inst", "instance": INSTANCE},
        f"cotal.demo.ep.inst.com_acme_echo.{INSTANCE}.echo.{TRIPLE}.{NONCE}",
    ),
    ({"command": "echo", "route": "all"}, f"cotal.demo.ep.all.com_acme_echo.echo.{TRIPLE}.{NONCE}"),
]


@pytest.mark.req("C13.2-20", "C13.2-21", "C13.2-25")
@pytest.mark.parametrize(("asked", "subject"), SUBJECTS)
@pytest.mark.parametrize("issued", [False, True])
async def test_subjects_are_the_golden_ones_on_both_rails(
    codec: JsProgram, asked: dict[str, Any], subject: str, issued: bool
) -> None:
    if issued:
        subject = subject.replace(".ep.", ".ep.v1.").replace(f"{TRIPLE}.", f"{TRIPLE}.{GENERATION}.")
    caller = {**CALLER, **({"generation": GENERATION} if issued else {})}
    found = await codec.do(
        "subjects", space="demo", caller=caller, asked={"endpoint": "com.acme.echo", **asked}, nonce=NONCE
    )
    assert found["request"] == subject
    theirs, ours = (await codec.do("codec", subject=subject))["split"], parse_request(subject)
    assert (theirs["route"], theirs["mode"] or "", theirs["command"]) == (ours.route, ours.mode, ours.values["command"])
    assert theirs["named"] == list(ours.target.values())
    assert (theirs["caller"]["owner"], theirs["caller"]["uid"], theirs["nonce"]) == (OWNER, UID, NONCE)
    assert theirs["caller"]["generation"] == ours.values.get("generation")


@pytest.mark.req("C13.3-49")
async def test_the_sentinel_is_the_golden_one(codec: JsProgram) -> None:
    asked = {"endpoint": "com.acme.echo", "command": "echo"}
    found = await codec.do("subjects", space="demo", caller=CALLER, asked=asked, nonce=NONCE)
    assert found["sentinel"] == f"cotal.demo.ep.reply._nr._nr._nr.{TRIPLE}.{NONCE}"


@pytest.mark.req("C13.2-21", "C13.2-22")
@pytest.mark.parametrize(
    "subject",
    [
        f"cotal.demo.ep.one.com_acme_echo.drain.owner.{TRIPLE}.{NONCE}",
        f"cotal.demo.ep.one.com_acme_echo.drain.other.{OWNER}.{TRIPLE}.{NONCE}",
        f"cotal.demo.ep.one.com_acme_echo.{TRIPLE}.{NONCE}",
        f"cotal.demo.ep.one.com_acme_echo.echo.{TRIPLE}.{NONCE}.{NONCE}",
        f"cotal.demo.ep.v1.one.com_acme_echo.echo.{TRIPLE}.{NONCE}",
        "P.ctl.delivery.x",
    ],
)
async def test_what_fits_no_form_names_nobody(codec: JsProgram, subject: str) -> None:
    assert (await codec.do("codec", subject=subject))["split"] is None


@pytest.mark.req("C13.2-01", "C13.2-07", "C13.2-09", "C13.2-17")
@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint": "a_b", "command": "echo"},
        {"endpoint": "com.acme.echo", "command": "Foo"},
        {"endpoint": "com.acme.echo", "command": "x" * 33},
        {"endpoint": "com.acme.echo", "command": "echo", "route": "inst", "instance": "short"},
        {"endpoint": "com.acme.echo", "command": "echo", "to": {"mode": "owner"}},
    ],
)
async def test_what_cannot_stand_in_a_subject_is_not_built(codec: JsProgram, wrong: dict[str, Any]) -> None:
    with pytest.raises(JsFailed):
        await codec.do("subjects", space="demo", caller=CALLER, asked=wrong, nonce=NONCE)
