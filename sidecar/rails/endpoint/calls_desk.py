"""The way of one call: resolve, send, wait, judge, and again where the rules allow (C13.3, C13.5, C13.7, C13.8).

``Desk`` is what the verbs of a caller share. One deadline bounds everything that a call needs: the description, the
contract, every repeat and every pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from sidecar.base.strictjson import JsonValue
from sidecar.ops.metrics import Metrics
from sidecar.rails.connection import Connection
from sidecar.rails.endpoint import calls_repeat as again
from sidecar.rails.endpoint import calls_trace as trace
from sidecar.rails.endpoint.calls_kept import Kept
from sidecar.rails.endpoint.calls_repeat import Again
from sidecar.rails.endpoint.calls_replies import Expected, answer
from sidecar.rails.endpoint.calls_request import NONCE_LENGTH, Plan, Rail, check_id, checked_args
from sidecar.rails.endpoint.calls_types import Answer, Described, To
from sidecar.rails.endpoint.calls_wire import Reply, Wire
from sidecar.rails.endpoint.clusters import UnsupportedProtocol
from sidecar.rails.endpoint.codes import CallError, CallFailed, Code, Outcome, nobody, unsent
from sidecar.rails.endpoint.contracts import DESCRIBE, JOURNAL, Contract, Contracts
from sidecar.rails.endpoint.descriptor import read_descriptor
from sidecar.rails.endpoint.envelope import Bind, Sender
from sidecar.rails.endpoint.resolve import Resolver
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.names import headers
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.tokens import endpoint_token

LEAST_SECONDS: Final = 0.001
"""The shortest deadline of a request."""
REGISTRY: Final = "registry"
MOST_PLANS: Final = 1_024
MOST_EPOCHS: Final = 4_096
"""Instances of which the newest epoch is remembered."""
_DRAWN: Final = NONCE_LENGTH // 2
_PER_CALL: Final = 2 * _DRAWN + trace.ENTROPY_BYTES


class Job:
    """One call on its way, over its repeats. ``until`` is on the loop's clock."""

    __slots__ = (
        "args",
        "bind",
        "checked",
        "command",
        "contract",
        "correlation",
        "endpoint",
        "id",
        "instance",
        "nonce",
        "rebind",
        "repeat",
        "resolved",
        "retarget",
        "to",
        "until",
    )

    def __init__(
        self,
        endpoint: str,
        command: str,
        args: JsonValue,
        until: float,
        instance: str | None,
        to: To | None,
        bind: Bind | bool | None,
        repeat: bool,
    ) -> None:
        self.endpoint, self.command, self.args, self.until = endpoint, command, args, until
        self.instance, self.to, self.repeat = instance, to, repeat
        self.rebind = bind is True
        """The caller chooses the incarnation itself, and may choose again (C13.2-55)."""
        self.bind: Bind | None = bind if isinstance(bind, Bind) else None
        self.retarget = to is not None and to.mode != "self" and to.uid is None
        """The caller looks the lifecycle of the target up itself, and may look again (C13.2-42)."""
        self.contract: Contract | None = None
        self.resolved = False
        self.checked: Contract | None = None
        """The contract that the arguments were checked against."""
        self.nonce = self.id = ""
        self.correlation: Mapping[str, str] = {}

    @property
    def route(self) -> str:
        return "one" if self.instance is None else "inst"


class Desk:
    """What one caller knows and holds."""

    def __init__(
        self,
        connection: Connection,
        rail: Rail,
        sender: Sender,
        contracts: Mapping[str, Contracts],
        entropy: Callable[[int], bytes],
        chance: Callable[[], float],
        metrics: Metrics | None,
    ) -> None:
        self.rail, self.sender, self.metrics, self.entropy = rail, sender, metrics, entropy
        self.wire = Wire(connection, rail, metrics)
        self.connection = connection
        self.resolver = Resolver(self.ask_description, self._documents)
        self.epochs: Kept[tuple[str, str], int] = Kept(MOST_EPOCHS)
        self._contracts, self.chance = contracts, chance
        self._plans: Kept[tuple[Any, ...], Plan] = Kept(MOST_PLANS)

    # ---- one call ----

    def draw(self, job: Job, identity: str | None, correlation: Mapping[str, str] | None) -> None:
        """Nonce, id and trace of a call, of one draw. CallFailed for an id that is none."""
        drawn = self.entropy(_PER_CALL).hex()
        job.nonce = drawn[:NONCE_LENGTH]
        job.id = drawn[NONCE_LENGTH : 2 * NONCE_LENGTH] if identity is None else check_id(identity)
        spans = drawn[2 * NONCE_LENGTH :]
        job.correlation = (
            {"traceparent": trace.begun(spans)} if correlation is None else trace.carried_on(correlation, spans)
        )

    def nonce(self) -> str:
        """A nonce for one request (C13.2-17)."""
        return self.entropy(_DRAWN).hex()

    async def run(self, job: Job) -> Answer:
        """The answer to a call, after as many repeats as the rules and the deadline allow. Raises CallError."""
        made: dict[Again, int] = {}
        while True:
            try:
                return await self._attempt(job)
            except CallError as error:
                why = self._why_again(job, error)
                if why is None:
                    raise
                before = made.get(why, 0)
                wait = self._wait(why, before)
                if wait is None or asyncio.get_running_loop().time() + wait >= job.until:
                    raise
                made[why] = before + 1
            self.repeated(why)
            if wait:
                await asyncio.sleep(wait)
            job.nonce = self.nonce()

    async def _attempt(self, job: Job) -> Answer:
        contract = job.contract
        if contract is None:
            contract = self._at_hand(job) or await self.contract(job.endpoint, job.command, job.until)
            job.contract = contract
            _check_callable(contract)
        if job.checked is not contract:
            job.args, job.checked = checked_args(contract, job.args), contract
        if job.retarget:
            await self.aim(job)
        if job.rebind and job.bind is None:
            job.bind = await self._current_bind(job)
        plan = self.plan(job.endpoint, contract, job.route, job.instance, job.to)
        data = plan.body(job.id, job.args, int(self.left(job.until) * 1000), job.correlation, job.bind)
        expected = Expected(job.endpoint, job.command, job.id, contract.output, job.bind)
        reply = await self.wire.exchange(plan.token, plan.prefix, job.nonce, data, job.until, job.instance)
        return self._judge(expected, reply, job.instance)

    async def aim(self, job: Job) -> None:
        """The target of a call is known with its current lifecycle. Raises CallFailed."""
        if job.retarget and job.to is not None and job.to.uid is None:
            job.to = await self._current_target(job.to, job.until)

    def left(self, until: float) -> float:
        """Seconds until a deadline. CallFailed when there is no millisecond left."""
        left = until - asyncio.get_running_loop().time()
        if left < LEAST_SECONDS:
            raise unsent(Code.DEADLINE_EXCEEDED, "there was no time left to send")
        return left

    async def ask(
        self, plan: Plan, nonce: str, data: bytes, until: float, expected: Expected, instance: str | None
    ) -> Answer:
        """Send one request and judge its reply. Raises CallError."""
        reply = await self.wire.exchange(plan.token, plan.prefix, nonce, data, until, instance)
        return self._judge(expected, reply, instance)

    def _judge(self, expected: Expected, reply: Reply | None, instance: str | None) -> Answer:
        if reply is None:
            raise nobody(expected.endpoint, instance)
        found, payload = reply
        return answer(expected, payload, found, self.newest(found.endpoint, found.instance, found.epoch))

    def newest(self, endpoint: str, instance: str, epoch: int) -> int | None:
        """The highest epoch of an instance that was known before; this one is known from now on (C13.2-50)."""
        key = (endpoint, instance)
        before = self.epochs.get(key)
        if before is None or epoch > before:
            self.epochs.put(key, epoch)
        return before

    def plan(self, endpoint: str, contract: Contract | None, route: str, instance: str | None, to: To | None) -> Plan:
        """The request of a command without what one call adds; made once. Raises CallFailed."""
        key = (endpoint, route, instance, to, id(contract))
        made = self._plans.get(key)
        if made is None or made.contract is not contract:
            try:
                made = Plan(self.rail, self.sender, endpoint, contract, route=route, instance=instance, to=to)
            except InvalidName as error:
                raise unsent(Code.BAD_REQUEST, str(error)) from None
            self._plans.put(key, made)
        return made

    # ---- again ----

    def _why_again(self, job: Job, error: CallError) -> Again | None:
        """Why this call is made again by itself, with what has to be read anew thrown away. None: it is not."""
        if error.has(headers.DETAIL_BIND_REFUSED) or error.code == Code.CONTRACT_MISMATCH:
            self.resolver.forget(job.endpoint)
        why = again.repairs(error, job.route, bound=job.rebind, resolved=job.resolved)
        if why is Again.BIND:
            job.bind = None
        elif why is Again.UNMAPPED and job.retarget and job.to is not None:
            job.to = job.to._replace(uid=None, mapping_revision=None)
        elif why is Again.CONTRACT:
            job.contract = None
        if why is None and job.repeat and job.contract is not None and not self.wire.over:
            why = again.repeats(error, read=again.reads(job.endpoint, job.contract))
        return why

    def _wait(self, why: Again, before: int) -> float | None:
        """Seconds before the next attempt, of so many of this kind before; None when there were enough."""
        if why is Again.BIND:
            if before >= again.BIND_REPAIRS:
                return None
            return 0.0 if before < again.BIND_AT_ONCE else again.pause(before - again.BIND_AT_ONCE, self.chance)
        if why is Again.UNMAPPED and before >= again.SPLIT_REPAIRS:
            return None
        if why is Again.CONTRACT:
            return 0.0 if not before else None
        return again.pause(before, self.chance)

    def repeated(self, why: Again) -> None:
        """Count a repeat."""
        if self.metrics is not None:
            self.metrics.counter("endpoint_call_repeats", why.value).inc()

    def missed(self, kind: str) -> None:
        """Count that a watch may have missed something."""
        if self.metrics is not None:
            self.metrics.counter("endpoint_watch_gaps", kind).inc()

    # ---- what a call needs to know ----

    def _at_hand(self, job: Job) -> Contract | None:
        """The contract of a call, if nothing has to be asked for it."""
        known = self._contracts.get(job.endpoint)
        if known is not None:
            return known.get(job.command)
        job.resolved = True
        return self.resolver.kept(job.endpoint, job.command, asyncio.get_running_loop().time())

    async def contract(self, endpoint: str, command: str, until: float) -> Contract:
        """The contract of a command: compiled in, or resolved. Raises CallFailed."""
        if command == DESCRIBE:
            raise unsent(Code.BAD_REQUEST, "describe has a verb of its own")
        known = self._contracts.get(endpoint)
        if known is not None:
            if command not in known:
                raise unsent(Code.UNIMPLEMENTED, f"no contract of {endpoint} has this command")
            return known[command]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        if (kept := self.resolver.kept(endpoint, command, begun)) is not None:
            return kept
        try:
            endpoint_token(endpoint)
        except InvalidName as error:
            raise unsent(Code.BAD_REQUEST, str(error)) from None
        try:
            return await self.resolver.contract(endpoint, command, until)
        finally:
            if self.metrics is not None:
                self.metrics.histogram("endpoint_resolve_seconds").observe(loop.time() - begun)

    async def _current_bind(self, job: Job) -> Bind:
        if job.instance is None:
            return await self.resolver.bind(job.endpoint, job.until)
        try:
            return (await self.ask_description(job.endpoint, job.until, job.instance)).bind
        except CallError as error:
            code = Code(error.code) if error.code in frozenset(Code) else Code.UNAVAILABLE
            raise unsent(code, f"{job.endpoint} was not described: {error}") from None

    async def _current_target(self, to: To, until: float) -> To:
        """The target with its current lifecycle (C13.2-38, -41). Raises CallFailed."""
        found = await self.registry("target", {"owner": to.owner or "", "actor": to.actor or ""}, until)
        uid = found.get("lifecycleUid")
        if uid is None:
            raise unsent(Code.EXPIRED, "the target has no current lifecycle", ({"kind": headers.DETAIL_UNMAPPED},))
        return to._replace(uid=uid, mapping_revision=found.get("mappingRevision"))

    async def registry(self, command: str, args: JsonValue, until: float) -> dict[str, Any]:
        """What the registry answers, over repeats. Raises CallFailed: nothing of a call that needs it was executed."""
        job = Job(REGISTRY, command, args, until, None, None, None, repeat=True)
        self.draw(job, None, None)
        try:
            return cast("dict[str, Any]", (await self.run(job)).data)
        except CallError as error:
            code = Code(error.code) if error.code in frozenset(Code) else Code.UNAVAILABLE
            raise unsent(code, f"the registry does not answer {command}: {error.message}") from None

    async def _documents(self, digests: Sequence[str], until: float) -> Mapping[str, JsonValue]:
        found = await self.registry("artifacts", {"digests": list(digests)}, until)
        return {one["digest"]: one["document"] for one in found["documents"]}

    # ---- describe ----

    async def ask_description(self, endpoint: str, until: float, instance: str | None = None) -> Described:
        """What an instance says of its endpoint to this caller. An unanswered question is asked again inside the
        deadline: it is a read (OPEN C13.7-h). Raises CallError, CallFailed with unsupported-version too."""
        loop = asyncio.get_running_loop()
        plan = self.plan(endpoint, None, "one" if instance is None else "inst", instance, None)
        wait = again.BASE_SECONDS
        job = Job(endpoint, DESCRIBE, None, until, instance, None, None, repeat=False)
        self.draw(job, None, None)
        while True:
            end = min(until, loop.time() + wait)
            try:
                data = plan.body(job.id, None, int(self.left(end) * 1000), job.correlation)
                expected = Expected(endpoint, DESCRIBE, job.id)
                found = await self.ask(plan, job.nonce, data, end, expected, instance)
                break
            except CallFailed as error:
                # Without time for one more the last word is that of the last attempt.
                if error.code != Code.DEADLINE_EXCEEDED or loop.time() + LEAST_SECONDS >= until:
                    raise named(error, endpoint, DESCRIBE, job.id) from None
            except CallError as error:
                raise named(error, endpoint, DESCRIBE, job.id) from None
            self.repeated(Again.UNANSWERED)
            wait, job.nonce = min(2 * wait, again.CAP_SECONDS), self.nonce()
        try:
            return _described(endpoint, found)
        except CallFailed as error:
            raise named(error, endpoint, DESCRIBE, job.id) from None


def _described(endpoint: str, found: Answer) -> Described:
    """The description in an answer. Raises CallFailed: the answer was given, and nothing may be called by it."""
    try:
        descriptor = read_descriptor(found.data)
    except UnsupportedProtocol as error:
        raise CallFailed(Code.UNSUPPORTED_VERSION, str(error), Outcome.EXECUTED) from None
    except EnvelopeError as error:
        raise CallFailed(Code.INTERNAL, f"the description is none: {error}", Outcome.EXECUTED) from None
    if descriptor.endpoint != endpoint:
        raise CallFailed(Code.INTERNAL, "the description is of another endpoint", Outcome.EXECUTED)
    return Described(descriptor, found.instance, found.epoch)


def _check_callable(contract: Contract) -> None:
    """Journaled commands are submitted, and what is called is answered (C13.4-02). Raises CallFailed."""
    if contract.action or contract.contract_class == JOURNAL:
        raise unsent(Code.UNIMPLEMENTED, f"{contract.command} is submitted to a journal, which this caller does not do")


def named(error: CallError, endpoint: str, command: str, identity: str) -> CallError:
    """The error with what it is about, if it does not say so yet."""
    if not error.endpoint:
        error.endpoint, error.command, error.id = endpoint, command, identity
    return error
