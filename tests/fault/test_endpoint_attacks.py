"""Callers, responders and schemas that are hostile, against real processes and with the same books."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.strictjson import NotJson
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.artifacts import ContractInvalid, digest, digest_of, manifest
from sidecar.rails.endpoint.caller import Answer
from sidecar.rails.endpoint.clusters import Cluster, Command
from sidecar.rails.endpoint.codes import CallError, Code, Outcome
from sidecar.rails.endpoint.schemas import VOID_SCHEMA
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.tokens import endpoint_token
from sidecar.rails.space.holder import Capability, Holder, Profile
from tests.e2e.calling import ECHO, Heard, calling, described, raw, registry
from tests.e2e.endpoints import room
from tests.e2e.own_endpoints import Site, site
from tests.e2e.space_members import SPACE, uid_of
from tests.fault.chaos import OK, Ledger, served, until
from tests.fault.chaos_endpoint import EFFECT, NAME, endpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALL = (Capability(NAME, "*"),)
TOKEN = endpoint_token(NAME)
_NONCES = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with site(tmp_path_factory.mktemp("attacks"), "com.acme") as made:
        yield made


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def request(holder: Holder, command: str = "count", **more: Any) -> str:
    names = {"space": SPACE, "endpoint": TOKEN, "command": command, **holder.lifecycle.names}
    names["nonce"] = f"{next(_NONCES):032x}"
    return subjects.REQUESTS["one", UNTARGETED, False].build(**{**names, **more})


def body(actor: str, command: str = "count", **changes: Any) -> dict[str, Any]:
    """A request that is right, changed; a member that is changed to ``...`` is left out."""
    contract = endpoint.contracts[command]
    op = {"endpoint": NAME, "command": command}
    op |= {"inputDigest": contract.input_digest, "outputDigest": contract.output_digest}
    whole = {
        "v": 1,
        "id": "r1",
        "op": op,
        "class": "ephemeral",
        "replyExpected": True,
        "from": {"id": f"local.{actor}", "name": actor},
        "deadlineMs": 5_000,
    }
    return {name: value for name, value in {**whole, **changes}.items() if value is not ...}


def _each(name: str, *values: Any) -> list[dict[str, Any]]:
    return [{name: value} for value in values]


def mutations(actor: str) -> list[bytes]:
    """Requests each of which has one thing wrong with it."""
    right = body(actor)
    op = right["op"]
    other = endpoint.contracts["echo"].input_digest
    wrong: list[Any] = [
        *_each("id", "", "x" * 65, "a b", "../x", "a.b", 7, None, ["r"], "ä", ...),
        *_each("v", 0, 2, "1", True, None, 1.5, ...),
        *(
            {"op": {**op, **one}}
            for one in _each("inputDigest", other, "", None, 7, "sha256:" + "0" * 64, "x" * 100_000)
        ),
        *({"op": {**op, **one}} for one in _each("outputDigest", other, None, 7)),
        *({"op": {**op, **one}} for one in _each("command", "once", None)),
        *({"op": {**op, **one}} for one in _each("endpoint", "com.acme.other", 1)),
        *_each("op", None, [], "count", ...),
        *_each("from", {"id": "local.bob", "name": "b"}, {"id": f"local.{actor}"}, None, [], ...),
        *({"from": {"id": f"local.{actor}", **one}} for one in _each("name", "n" * 100_000, 7, None)),
        *_each("target", {"owner": "local", "actor": "bob", "lifecycleUid": uid_of("bob")}, {}, None),
        *_each("bind", {"instanceId": "z9" * 13, "epoch": 0}, {"instanceId": "x"}, {}, None, 7),
        *_each("deadlineMs", 0, -1, 1.5, "5", 2**53, 10**30, True, None, ...),
        *_each("class", "journal", "", 7, None, ...),
        *_each("replyExpected", "yes", 1, None),
        *_each("args", {}, {"a": 1}, [], 0, "", False),
        *_each("goalId", "g1", "", 7),
        *_each("correlation", 7, {"traceparent": "00-0"}, {"baggage": "x" * 9_000}),
        *_each("auth", 7, "x" * 65_537),
    ]
    given = [json.dumps({name: one for name, one in {**right, **each}.items() if one is not ...}) for each in wrong]
    plain = json.dumps(right)
    given += [plain[:-1] + ',"id":"r2"}', plain.replace("5000", "NaN"), plain[:-1], f"[{plain}]", "[" * 100_000, ""]
    given += [plain[:-1] + ',"args":' + '{"a":' * 5_000 + "1" + "}" * 5_000 + "}"]
    return [one.encode() for one in given] + [b"\xff\xfe" + plain.encode(), plain.encode("utf-16")]


@pytest.mark.req("C13.3-05", "C13.3-09", "C13.3-10", "C13.2-22", "C13.2-29", "C13.2-44", "C13.2-46", "C13.14-03")
async def test_nothing_that_a_hostile_caller_forges_has_an_effect(place: Site, ledger: Ledger) -> None:
    async with (
        served(place, ledger) as one,
        place.caller(endpoint, *ALL) as alice,
        place.space.member(Profile.AGENT, "mallory", capabilities=ALL) as (mallory, holder),
    ):
        answers: dict[str, dict[str, Any]] = {}

        async def heard(message: Any) -> None:
            nonce = message.subject.rpartition(".")[2]
            assert nonce not in answers, "answered twice"
            answers[nonce] = json.loads(message.data)

        own = subjects.REPLIES[False].filter(space=SPACE, **holder.lifecycle.names)
        await mallory.client.subscribe(own, cb=heard)
        # Who asks, and where the answer goes, is the broker's to say: these never reach the instance.
        data = json.dumps(body("alice")).encode()
        forged = request(holder, **alice._desk.rail._names)  # type: ignore[arg-type]
        assert not await mallory.may_publish(forged, data)
        names = {"space": SPACE, "endpoint": TOKEN, "instance": one.instance, "epoch": one.epoch}
        reply = f"cotal.{SPACE}.ep.reply.{TOKEN}.{one.instance}.{one.epoch}"
        for victim in (f"{reply}.local.alice.{uid_of('alice')}.{'0' * 32}", forged.replace(".one.", ".reply.")):
            assert not await mallory.may_publish(victim, data), names
        # Frames on its own subjects, with everything wrong that can be.
        asked = []
        for each in mutations("mallory"):
            subject = request(holder)
            asked.append(subject.rpartition(".")[2])
            await mallory.client.publish(subject, each, reply=reply)
        for nonce in ("", "x" * 400, "x" * 65, "x" * 21, "%" * 32, "ä" * 32, f"{'x' * 32}.y"):
            bad = request(holder).rpartition(".")[0]
            await mallory.client.publish(f"{bad}.{nonce}" if nonce else bad, json.dumps(body("mallory")).encode())
        for number in range(32):
            assert isinstance(await ledger.call(alice, "count"), Answer), number
        last = request(holder)
        await mallory.client.publish(last, json.dumps(body("mallory", "echo", args={"text": "x"})).encode())
        await until(lambda: answers.keys() >= set(asked))
        for nonce in asked:
            assert not answers[nonce]["ok"]
            assert answers[nonce]["error"]["outcome"] == Outcome.NOT_EXECUTED
            assert len(json.dumps(answers[nonce])) < 2_048
        assert ledger.check() == {OK: 32}
        assert len(ledger.lines(EFFECT)) == 32


@pytest.mark.req("C13.8-50", "C13.14-03")
async def test_a_caller_that_never_reads_harms_nobody_else(place: Site, ledger: Ledger) -> None:
    async with (
        served(place, ledger) as one,
        place.caller(endpoint, *ALL) as alice,
        place.space.member(Profile.AGENT, "sloth", capabilities=ALL) as (_, holder),
    ):
        await ledger.call(alice, "count")
        creds = next(iter(sorted((place.broker.directory / "creds").glob(f"{holder.connection}*"))))
        text = json.dumps(body("sloth", "echo", args={"text": "x" * 60_000}))
        replies = subjects.REPLIES[False].filter(space=SPACE, **holder.lifecycle.names)
        before = one.resident()
        words = [place.where.url, str(creds), f"_INBOX_{holder.connection}", replies]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.fault.chaos_peer",
            *words,
            request(holder, "echo").rpartition(".")[0] + ".",
            text,
            "2000",
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            sent = asyncio.create_task(process.stdout.readline())
            while not sent.done():
                assert isinstance(await ledger.call(alice, "count"), Answer)
            assert sent.result() == b"sent\n"
            for _ in range(64):
                assert isinstance(await ledger.call(alice, "count"), Answer)
            assert one.resident() - before < 128 * 2**20
        finally:
            process.kill()
            await process.wait()
        assert ledger.check().keys() == {OK}


# ---- responders ----


NASTY = 17


def nasty(heard: Heard) -> Any:
    """A reply that is none, or is one of somebody else: the id of the request says which."""
    right = heard.ok()
    of_kind: list[Any] = [
        b"",
        b"\xff" * 1_000,
        b"[" * 200_000,
        b"[" * 100 + b"]" * 100,
        json.dumps({**right, "v": 2}).encode(),
        json.dumps({**right, "id": "other"}).encode(),
        json.dumps({**right, "error": {}}).encode(),
        json.dumps({**right, "data": "x" * 900_000}).encode(),
        json.dumps({**right, "receipt": "x" * 20_000}).encode(),
        json.dumps({**right, "ok": 1}).encode(),
        heard.no("conflict", "perhaps"),
        heard.no("no such code"),
        heard.no("conflict", "executed", *({"kind": "com.acme.x"},) * 17),
        heard.no("conflict", "executed", {"kind": "com.acme.x", "text": "x" * 900_000}),
        {**heard.no("conflict"), "error": {"code": "conflict", "message": "m" * 900_000}},
        {**heard.no("conflict"), "id": "other"},
        None,
    ]
    assert len(of_kind) == NASTY
    return of_kind[int(heard.body["id"].partition("-")[0])]


@pytest.mark.req("C13.3-34", "C13.3-35", "C13.3-43", "C13.3-48", "C13.14-09")
async def test_a_hostile_responder_ends_each_call_once_and_fills_nothing(tmp_path: Path, ledger: Ledger) -> None:
    known = {ECHO: {"count": endpoint.contracts["count"]}}
    async with room(tmp_path) as here, raw(here) as one, calling(here, contracts=known) as (caller, _):
        one.answer = Heard.ok
        assert await caller.call(ECHO, "count") is None
        one.answer = nasty
        outcomes = dict.fromkeys(Outcome, 0)

        async def ended(kind: int, number: int) -> None:
            # The last one is silence, which only a deadline ends.
            seconds = 1.0 if kind == NASTY - 1 else 60.0
            with pytest.raises(CallError) as error:
                await caller.call(ECHO, "count", id=f"{kind}-{number}", seconds=seconds)
            outcomes[error.value.outcome] += 1
            assert len(str(error.value)) < 1_024

        await asyncio.gather(*(ended(kind, number) for number in range(8) for kind in range(NASTY)))
        assert sum(outcomes.values()) == 8 * NASTY
        assert all(outcomes.values())
        wire = caller._desk.wire
        assert not wire._waiting
        assert wire._open == 0
        one.answer = Heard.ok
        assert await caller.call(ECHO, "count") is None


# ---- schemas ----


def _nested(depth: int) -> Any:
    found: Any = {"type": "string"}
    for _ in range(depth):
        found = {"type": "array", "items": found}
    return found


def _ladder(rungs: int) -> Any:
    """References that double with each rung."""
    defs = {f"r{n}": {"allOf": [{"$ref": f"#/$defs/r{n + 1}"}, {"$ref": f"#/$defs/r{n + 1}"}]} for n in range(rungs)}
    return {"$ref": "#/$defs/r0", "$defs": {**defs, f"r{rungs}": {"type": "string"}}}


BOMBS: dict[str, Any] = {
    "depth": _nested(500),
    "doubling references": _ladder(40),
    "a chain of references": {
        "$ref": "#/$defs/r0",
        "$defs": {**{f"r{n}": {"$ref": f"#/$defs/r{n + 1}"} for n in range(60)}, "r60": True},
    },
    "a reference to itself": {"$ref": "#"},
    "a reference that leads out": {"$ref": "http://127.0.0.1:1/x"},
    "an expression that backtracks": {"type": "string", "pattern": "(a|a)*(b{1,500}){1,500}$"},
    "an expression that counts": {"type": "string", "pattern": "((x{1,1000}){1,1000}){1,1000}"},
    "many parts": {"properties": {f"p{n}": {"type": "string", "maxLength": n} for n in range(6_000)}},
    "many ways": {"anyOf": [{"oneOf": [{"minimum": n}, {"maximum": m}]} for n in range(60) for m in range(60)]},
    "size": {"enum": ["x" * 1_000 + str(n) for n in range(2_000)]},
}


@pytest.mark.req("C13.7-22", "C13.7-24", "C13.14-10")
@pytest.mark.parametrize("bomb", list(BOMBS))
async def test_a_schema_bomb_is_declared_by_nobody(bomb: str) -> None:
    made = Endpoint("com.acme.bomb")
    with pytest.raises(ContractInvalid):
        made.command(name="echo", input=BOMBS[bomb])(_never)
    with pytest.raises(ContractInvalid):
        made.event("echo", BOMBS[bomb])
    assert not made.handlers


async def _never(call: Any) -> None:
    raise AssertionError(call)


@pytest.mark.req("C13.7-22", "C13.7-36", "C13.14-10", "C13.3-47")
async def test_a_schema_bomb_that_an_instance_describes_is_not_called(tmp_path: Path) -> None:
    async with room(tmp_path) as here, raw(here) as one, registry(here) as (lists, _):
        for name, document in BOMBS.items():
            try:
                root = digest(document)
            except NotJson:
                continue  # what has no canonical form has no digest that could be described
            members = manifest(root)
            given, gives = digest_of(members), VOID_SCHEMA.closure
            bomb = Command(name="echo", input_digest=given, output_digest=gives, capability="bomb.echo")
            told = described(Cluster(ECHO, 1, (bomb,)), 1)
            one.answer = functools.partial(Heard.ok, data=told)
            lists.documents = {root: document, bomb.input_digest: json.loads(members)}
            async with calling(here) as (caller, _):
                with pytest.raises(CallError) as error:
                    await caller.call(ECHO, "echo", "x", seconds=2.0)
                assert error.value.outcome is Outcome.NOT_EXECUTED, name
                assert error.value.code in (Code.CONTRACT_INVALID, Code.DEADLINE_EXCEEDED), name
                assert len(str(error.value)) < 1_024
        assert {heard.command for heard in one.heard} == {"describe"}
