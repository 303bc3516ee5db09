"""An endpoint of a third party at a real broker: rails, routes, describe, order of checks, outcomes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sidecar.base.strictjson import JsonValue
from sidecar.rails import Endpoint
from sidecar.rails.connection import PermissionViolation
from sidecar.rails.endpoint import serve_run
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal
from sidecar.rails.endpoint.contracts import DESCRIBE
from sidecar.rails.envelopes.errors import Fault
from sidecar.rails.envelopes.shapes import Shape
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names import headers
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.holder import Capability, Profile, Service
from tests.e2e.endpoints import Room, room, until
from tests.e2e.serving import GENERATION, NAME, ONE, TEXT, TWO, Lab, Peer, peer
from tests.e2e.space_dial import dialled
from tests.e2e.space_members import SPACE, uid_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
NOT, UNKNOWN, EXECUTED = Outcome.NOT_EXECUTED, Outcome.UNKNOWN, Outcome.EXECUTED


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Room]:
    async with room(tmp_path_factory.mktemp("serving")) as made:
        yield made


@pytest.mark.req("C13-01", "C13.2-14", "C13.2-15", "C13.2-25", "C13.2-27", "C13.2-28", "C13.2-45", "C13.14-03")
async def test_both_rails_and_all_routes_reach_the_instances_that_they_name(here: Room) -> None:
    one, two = Lab(ONE), Lab(TWO, epoch=4)
    async with one.serving(here), two.serving(here), peer(here, one) as alice:
        for issued in (False, True):
            nonces = [await alice.send(at={"issued": issued}) for _ in range(40)]
            answers = [await alice.answer(nonce) for nonce in nonces]
            assert all(reply["ok"] and reply["data"] == {"text": "hi"} for _, reply in answers)
            rail, tail = (".v1", f".{GENERATION}") if issued else ("", "")
            triple = f"local.alice.{alice.uid}{tail}"
            heads = {subject.rpartition(".")[0] for subject, _ in answers}
            assert heads == {
                f"cotal.main.ep{rail}.reply.com_acme_lab.{ONE}.0.{triple}",
                f"cotal.main.ep{rail}.reply.com_acme_lab.{TWO}.4.{triple}",
            }
        assert len(one.calls) + len(two.calls) == 80  # each request of the class reached exactly one
        assert {call.generation for call in one.calls} == {None, GENERATION}
        for issued in (False, True):
            before = len(one.calls), len(two.calls)
            await alice.ask(at={"issued": issued, "route": "inst"})
            assert (len(one.calls), len(two.calls)) == (before[0] + 1, before[1])
            nonce = await alice.send(at={"issued": issued, "route": "all"})
            found = {(await alice.answer(nonce))[0].split(".")[-6 - issued] for _ in range(2)}
            assert found == {ONE, TWO}
        assert {call.route for call in one.calls} == {"one", "inst", "all"}
        assert {call.caller for call in one.calls} == {Lifecycle(Principal("local", "alice"), uid_of("alice"))}
        assert one.server.serving


@pytest.mark.req("C13.2-15", "C13.14-01", "C13.2-05")
async def test_a_serve_credential_serves_its_own_commands_and_no_others(here: Room) -> None:
    lab = Lab()
    service = Service(ONE, 0, ("echo",), endpoint=NAME)
    async with dialled(here.space, Profile.ENDPOINT, "few", service=service) as (link, _):
        with pytest.raises(PermissionViolation):
            async with lab.on(link):
                pass
        plain = subjects.REQUESTS["one", UNTARGETED, False].subtree(
            space=SPACE, endpoint="com_acme_lab", command="echo"
        )
        with pytest.raises(PermissionViolation):
            await link.subscribe(plain)
        with pytest.raises(PermissionViolation):
            await link.subscribe(plain, "another")
        await link.subscribe(plain, "com_acme_lab")


@pytest.mark.req("C13.3-02", "C13.3-03", "C13.3-04", "C13.3-05", "C13.3-06")
async def test_redirected_frames_are_discarded_on_every_rail_and_route(here: Room) -> None:
    lab = Lab()
    async with lab.serving(here), peer(here, lab) as alice:
        names = (headers.STREAM, headers.SUBJECT.lower(), headers.SEQUENCE.upper(), headers.TIMESTAMP)
        for name, route, issued in itertools.product(names, subjects.ROUTES, (False, True)):
            await alice.send(headers={name: ""}, at={"route": route, "issued": issued})
        await until(lambda: lab.total("endpoint_discarded") == {("redirected",): 24})
        assert not lab.calls
        assert not alice.answers
        assert (await alice.ask(headers={"X-Foo": "1"}))["ok"]
        assert await alice.error(headers={"X-Foo": "1"}, args={}) == (Code.BAD_REQUEST, NOT)


@pytest.mark.req("C13.2-22", "C13.2-44", "C13.2-46", "C13.3-18", "C13.3-56")
async def test_who_asks_and_where_it_is_answered_stands_in_the_subject_alone(here: Room) -> None:
    lab = Lab()
    async with lab.serving(here), peer(here, lab) as alice:
        victim = await alice.connection.subscribe("victim.>")
        assert (await alice.ask(reply="victim.inbox", replyTo="victim.body", auth="widen"))["ok"]
        good = alice.subject()
        for wrong in (f"{good}.more", good.replace(".echo.", ".echo.owner."), good.replace(alice.uid, "short")):
            await alice.connection.publish(wrong, b"{}")
        await until(lambda: lab.total("endpoint_discarded") == {("no_sender",): 3})
        casts: tuple[dict[str, Any], ...] = ({"args": {}}, {"v": 9}, {"class": "journal"}, {})
        for cast in casts:
            await alice.send(replyExpected=False, **cast)
        await until(lambda: len(lab.calls) == 2)
        assert (await alice.ask())["ok"]
        assert victim.poll() is None
        assert len(alice.answers) == 2


@pytest.mark.req("C13.7-65", "C13.7-66", "C13.7-69", "C13.14-02", "C13-02", "C13.7-64")
async def test_describe_tells_each_caller_what_it_may_call(here: Room) -> None:
    lab = Lab()
    other = lab.endpoint.command("far", cluster="com.acme.far")

    @other
    async def far(call: Call) -> JsonValue:
        return None

    held = lab.trusted.held_by
    async with lab.serving(here), peer(here, lab) as alice:
        whole, beside = lab.endpoint.surface.clusters
        for commands, expected in (
            ({"echo", "hold", "far", "unknown"}, [(whole, ["echo", "hold"], True), (beside, ["far"], True)]),
            ({"echo"}, [(whole, ["echo"], False)]),
            ({"far", "hold"}, [(whole, ["hold"], False), (beside, ["far"], True)]),
            (set(), []),
        ):
            held["local.alice"] = frozenset(commands)
            for issued, route in itertools.product((False, True), ("one", "inst", "all")):
                answer = await alice.describe(at={"issued": issued, "route": route})
                assert answer["data"]["public"] is False
                told = answer["data"]["descriptor"]
                assert (told["endpoint"], told["owner"], told["protocol"]) == (NAME, "local", {"v": 1})
                assert told["clusters"] == [
                    {"digest": one.closure, "commands": names, **({"document": one.value()} if inline else {})}
                    for one, names, inline in expected
                ]
                assert lab.trusted.asked[-1] == (f"local.alice.{alice.uid}", GENERATION if issued else None)
        held.clear()
        held["local.bob"] = frozenset({"echo"})
        asked = await alice.describe(auth="local.bob", **{"from": {"id": "local.alice", "name": "bob"}})
        assert asked["data"]["descriptor"]["clusters"] == []  # nothing that is claimed counts


@pytest.mark.req("C13.7-67", "C13.7-66", "C13.3-15", "C13.3-25")
async def test_describe_has_its_own_refusals(here: Room) -> None:
    lab = Lab()
    pinned = {"endpoint": NAME, "command": DESCRIBE, "inputDigest": lab.endpoint.contracts["echo"].input_digest}
    async with lab.serving(here), peer(here, lab) as alice:
        for changes, code in (
            ({"bind": {"instanceId": ONE, "epoch": 0}}, Code.BAD_REQUEST),
            ({"op": pinned}, Code.CONTRACT_MISMATCH),
            ({"args": {}}, Code.BAD_REQUEST),
            ({"goalId": "g"}, Code.BAD_REQUEST),
            ({"class": "journal"}, Code.CLASS_MISMATCH),
            ({"from": {"id": "local.bob", "name": "bob"}}, Code.SENDER_MISMATCH),
            ({"target": {"owner": "local", "actor": "b", "lifecycleUid": uid_of("b")}}, Code.TARGET_MISMATCH),
            ({"at": {"mode": "self"}}, Code.TARGET_MISMATCH),
            ({"op": {**pinned, "command": "echo"}}, Code.OP_MISMATCH),
            ({"deadlineMs": 0}, Code.BAD_REQUEST),
        ):
            assert await alice.error(DESCRIBE, **changes) == (code, NOT), changes
        assert not lab.trusted.asked
        lab.trusted.down = True
        assert await alice.error(DESCRIBE) == (Code.UNAVAILABLE, NOT)
        assert lab.total("endpoint_views") == {("unavailable",): 1}
        asked = len(lab.trusted.asked)
        await alice.send(DESCRIBE, replyExpected=False)
        assert (await alice.ask())["ok"]
        assert len(lab.trusted.asked) == asked  # a cast is told nothing, so nothing is read for it


@pytest.mark.req("C13.7-68")
async def test_a_public_descriptor_reads_no_view(here: Room) -> None:
    lab = Lab(public=True, protocol=2)
    lab.trusted.down = True
    async with lab.serving(here), peer(here, lab) as alice:
        answer = await alice.describe()
        assert answer["data"]["public"] is True
        (cluster,) = answer["data"]["descriptor"]["clusters"]
        assert [(one["name"], one["effect"]) for one in cluster["document"]["commands"]] == [
            ("echo", "read"),
            ("hold", "write"),
        ]
        assert answer["data"]["descriptor"]["protocol"] == {"v": 2}
        assert not lab.trusted.asked
        assert lab.total("endpoint_views") == {("public",): 1}


@pytest.mark.req("C13.2-53", "C13.2-54", "C13.3-25", "C13.3-26", "C13.3-27", "C13.3-40")
async def test_a_bound_request_runs_on_that_incarnation_alone(here: Room) -> None:
    lab = Lab(epoch=3)
    async with lab.serving(here), peer(here, lab) as alice:
        assert (await alice.ask(bind={"instanceId": ONE, "epoch": 3}))["ok"]
        for bind, code in (
            ({"instanceId": TWO, "epoch": 3}, Code.FAILED_PRECONDITION),
            ({"instanceId": ONE, "epoch": 2}, Code.EXPIRED),
        ):
            for issued in (False, True):
                found = await alice.ask(bind=bind, args={"bad": 1}, at={"issued": issued})
                assert (found["error"]["code"], found["error"]["outcome"]) == (code, NOT)
                assert found["error"]["details"] == [
                    {
                        "kind": "ai.cotal.ep.bind-refused",
                        "endpoint": NAME,
                        "command": "echo",
                        "boundTo": bind,
                        "servedBy": {"instanceId": ONE, "epoch": 3},
                    }
                ]
        assert await alice.error(bind={"instanceId": ONE, "epoch": 3}, at={"route": "all"}) == (Code.BAD_REQUEST, NOT)
        assert await alice.error(bind={"instanceId": TWO, "epoch": 3}, at={"route": "inst"}) == (Code.BAD_REQUEST, NOT)
        assert len(lab.calls) == 1


@pytest.mark.req(
    "C13.3-09", "C13.3-11", "C13.3-13", "C13.3-14", "C13.3-16", "C13.3-28", "C13.3-29", "C13.7-71", "C13.7-25"
)
@pytest.mark.req("C13.3-30", "C13.3-40", "C13.3-01", "C13.3-20", "C13.4-01", "C13.3-34")
async def test_each_refusal_of_a_responder_can_be_had(here: Room) -> None:
    lab = Lab()
    contract = lab.endpoint.contracts["echo"]
    op = {"endpoint": NAME, "command": "echo", "inputDigest": contract.input_digest}
    async with lab.serving(here), peer(here, lab) as alice:
        refusals: tuple[tuple[dict[str, Any], Code], ...] = (
            ({"raw": ["no", "request"]}, Code.BAD_REQUEST),
            ({"v": 2}, Code.UNSUPPORTED_VERSION),
            ({"correlation": {"traceparent": "x" * 300}}, Code.BAD_REQUEST),
            ({"op": {**op, "command": "hold"}}, Code.OP_MISMATCH),
            ({"op": {**op, "endpoint": "com.acme.other"}}, Code.OP_MISMATCH),
            ({"at": {"mode": "self"}}, Code.TARGET_MISMATCH),
            ({"target": {"owner": "local", "actor": "b", "lifecycleUid": uid_of("b")}}, Code.TARGET_MISMATCH),
            ({"from": {"id": "local.bob", "name": "bob"}}, Code.SENDER_MISMATCH),
            ({"class": "journal"}, Code.CLASS_MISMATCH),
            ({"class": "record"}, Code.CLASS_MISMATCH),
            ({"goalId": "g"}, Code.BAD_REQUEST),
            ({"op": op}, Code.CONTRACT_MISMATCH),
            ({"op": {**op, "inputDigest": None, "outputDigest": contract.output_digest}}, Code.CONTRACT_MISMATCH),
            ({"op": {**op, "inputDigest": contract.output_digest}}, Code.CONTRACT_MISMATCH),
            ({"op": {**op, "outputDigest": contract.input_digest[:-1] + "x"}}, Code.CONTRACT_MISMATCH),
            ({"args": {"text": "x" * 65}}, Code.BAD_REQUEST),
            ({"args": {"text": 7}}, Code.BAD_REQUEST),
            ({"deadlineMs": 0}, Code.BAD_REQUEST),
        )
        for changes, code in refusals:
            assert await alice.error(**changes) == (code, NOT), changes
        assert not lab.calls
        found = await alice.ask(id="chosen-1")
        assert (found["ok"], found["id"]) == (True, "chosen-1")


@pytest.mark.req("C13.3-36", "C13.3-41", "C13.3-42", "C13.3-44", "C13.3-45", "C13.3-35", "C13.3-39")
async def test_the_outcome_is_what_is_known_of_the_effect(here: Room) -> None:
    lab = Lab()

    @lab.endpoint.command(input={"type": "string"}, output={"type": "integer"})
    async def act(call: Call) -> JsonValue:
        match call.args:
            case "before":
                raise call.refuse(Code.NOT_FOUND, "nothing there", ({"kind": "com.acme.why", "at": 1},))
            case "after":
                call.effect()
                raise call.refuse(Code.CONFLICT, "half done")
            case "lies":
                call.effect()
                raise Refusal(Code.CONFLICT, "half done", Outcome.NOT_EXECUTED)
            case "did":
                raise Refusal(Code.ALREADY_EXISTS, "done before", Outcome.EXECUTED)
            case "own":
                raise Refusal("com.acme.full", "no room", Outcome.NOT_EXECUTED)
            case "none":
                raise Refusal("nonsense", "no code", Outcome.NOT_EXECUTED)
            case "crashes":
                raise ZeroDivisionError("secret")
            case "gives up":
                raise asyncio.CancelledError
            case "tells much":
                raise Refusal(Code.NOT_FOUND, "x", Outcome.NOT_EXECUTED, [{"kind": "com.acme.why", "x": "x" * 2**20}])
            case "wrong":
                return "no integer"
            case "never":
                return object()  # type: ignore[return-value]
        return await asyncio.Event().wait()

    async with lab.serving(here, longest=0.05), peer(here, lab) as alice:
        for word, code, outcome in (
            ("before", Code.NOT_FOUND, NOT),
            ("after", Code.CONFLICT, UNKNOWN),
            ("lies", Code.CONFLICT, UNKNOWN),
            ("did", Code.ALREADY_EXISTS, EXECUTED),
            ("own", "com.acme.full", NOT),
            ("none", Code.INTERNAL, NOT),
            ("crashes", Code.INTERNAL, UNKNOWN),
            ("gives up", Code.INTERNAL, UNKNOWN),
            ("tells much", Code.NOT_FOUND, NOT),
            ("wrong", Code.INTERNAL, EXECUTED),
            ("never", Code.INTERNAL, EXECUTED),
            ("hangs", Code.DEADLINE_EXCEEDED, UNKNOWN),
        ):
            found = await alice.ask("act", args=word)
            assert (found["error"]["code"], found["error"]["outcome"]) == (code, outcome), word
            assert "data" not in found
            assert "secret" not in found["error"]["message"]
        assert (await alice.ask("act", args="before"))["error"]["details"] == [{"kind": "com.acme.why", "at": 1}]
        failures = lab.total("endpoint_handler_failures")
        assert failures == {("raised",): 2, ("result",): 2, ("overrun",): 1}
        assert "secret" not in lab.log.getvalue()
        assert lab.total("endpoint_requests")[("extension",)] == 1


@pytest.mark.req("C13.3-40", "C13.3-41", "C13.3-45")
async def test_a_check_of_the_author_that_raises_is_answered(here: Room) -> None:
    def broken(value: object) -> Fault | None:
        raise ZeroDivisionError("secret")

    lab = Lab()

    def strange(value: object) -> Any:
        return "no fault"

    lab.endpoint.command("bad-answer", output=Shape({"type": "string"}, broken), idempotent=True)(lab.echo)
    lab.endpoint.command("bad-question", input=Shape({"type": "string"}, broken))(lab.echo)
    lab.endpoint.command("odd-answer", output=Shape({"type": "string"}, strange))(lab.echo)
    lab.endpoint.command("odd-question", input=Shape({"type": "string"}, strange))(lab.echo)
    async with lab.serving(here), peer(here, lab) as alice:
        for command in ("bad-question", "odd-question"):
            assert await alice.error(command) == (Code.INTERNAL, NOT)
        assert not lab.calls
        for _ in range(2):
            assert await alice.error("bad-answer", id="same") == (Code.INTERNAL, EXECUTED)
        assert len(lab.calls) == 1  # it has its effect once, and its answer is kept
        assert await alice.error("odd-answer") == (Code.INTERNAL, EXECUTED)
        assert (await alice.ask())["ok"]
        assert lab.total("endpoint_handler_failures") == {("check",): 4}
        assert "secret" not in lab.log.getvalue()


async def test_a_fault_of_ours_ends_one_request_and_is_told(here: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(identity: str, data: JsonValue) -> bytes:
        raise ZeroDivisionError("secret")

    lab = Lab()
    async with lab.serving(here), peer(here, lab) as alice:
        with monkeypatch.context() as patched:
            patched.setattr(serve_run, "encode_data", broken)
            assert await alice.error() == (Code.INTERNAL, UNKNOWN)
            patched.setattr(lab.server._dispatcher, "_accept", broken)
            await alice.send()
            await until(lambda: lab.total("endpoint_handler_failures") == {("server",): 2})
        assert (await alice.ask())["ok"]
        assert "secret" not in lab.log.getvalue()


async def test_a_handler_has_no_longer_than_its_caller_waits(here: Room) -> None:
    lab = Lab()
    async with lab.serving(here), peer(here, lab) as alice:
        assert await alice.error("hold", deadlineMs=30) == (Code.DEADLINE_EXCEEDED, UNKNOWN)
        assert lab.calls[0].deadline_ms == 30
        assert lab.calls[0].seconds_left == 0.0
        assert lab.total("endpoint_handler_failures") == {("overrun",): 1}


@pytest.mark.req("C13-01", "C13.2-26", "C13.2-27", "C13.7-26")
async def test_callers_of_both_kinds_are_served_with_the_credentials_that_they_have(here: Room) -> None:
    """The ten lines that an endpoint takes, and callers whose grants are minted."""
    endpoint = Endpoint(NAME, public=True)

    @endpoint.command(input=TEXT, output=TEXT, effect="read")
    async def echo(call: Call) -> JsonValue:
        return call.args

    lab = Lab(public=True)
    lab.endpoint = endpoint
    able = (Capability(NAME, "*"),)
    async with lab.serving(here):
        for actor, generation in (("legacy", None), ("issued", GENERATION)):
            rail = generation is not None
            async with dialled(here.space, Profile.AGENT, actor, capabilities=able, generation=generation) as (
                link,
                holder,
            ):
                asked = Peer(link, lab, actor)
                await asked.listen((rail,))
                assert holder.lifecycle.uid == asked.uid
                assert (await asked.ask(at={"issued": rail}))["data"] == {"text": "hi"}
                assert (await asked.describe(at={"issued": rail}))["ok"]
                with pytest.raises(PermissionViolation):
                    await asked.send(at={"issued": not rail})
