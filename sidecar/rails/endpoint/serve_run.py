"""Requests as they come: judged, given to their handlers, and answered once each (C13.3, C13.8-01, C13.14-03).

A frame is judged in the moment in which it comes. Handlers run beside each other, so many in all and so many for one
caller; what a request holds, or a handler raises, never ends the serving. Whatever happens before the handler is
called is not-executed; behind it, what the handler says counts, and what nobody can tell is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nats.aio.msg import Msg

from sidecar.base.strictjson import JsonValue
from sidecar.ops.logging import Log, told
from sidecar.ops.metrics import Metrics
from sidecar.rails.endpoint.call import NO_CORRELATION, Call, Emits, Handler
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal, is_code, label
from sidecar.rails.endpoint.envelope import encode_data, encode_refusal
from sidecar.rails.endpoint.judge import Accepted, Describes, Discard, Refused, Serving
from sidecar.rails.endpoint.serve_answers import Answers
from sidecar.rails.endpoint.serve_describe import Described
from sidecar.rails.endpoint.serve_results import Key, Results
from sidecar.rails.endpoint.serve_targets import Targets
from sidecar.rails.endpoint.serve_turns import Turn, Turns
from sidecar.rails.endpoint.slots import Slots
from sidecar.rails.endpoint.view import Unavailable
from sidecar.rails.envelopes.errors import EnvelopeError

DESCRIBING, PER_DESCRIBING = 256, 16
"""Reads of views at a time, and those for one caller."""
DESCRIBE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one instance takes at a time. ``waiting`` counts commands that wait for something, apart from those that
    work; ``longest`` are the seconds after which a handler is cancelled, if its caller's deadline is not sooner."""

    at_once: int = 256
    waiting: int = 4_096
    per_caller: int = 64
    longest: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an instance has beside its handlers."""

    targets: Targets
    described: Described | None = None
    emits: Emits | None = None
    results: Results = field(default_factory=Results)


class _Job(Turn):
    """One handler on its way. Times are those of the loop."""

    __slots__ = ("accepted", "begun", "deadline", "dispatched", "key", "overran", "slots", "timer")

    def __init__(self, accepted: Accepted, slots: Slots, key: Key | None, begun: float, deadline: float) -> None:
        self.accepted, self.slots, self.key, self.begun, self.deadline = accepted, slots, key, begun, deadline
        self.dispatched = self.overran = False
        self.timer: asyncio.TimerHandle | None = None
        """Stands from the moment in which the handler waits for something."""

    def overrun(self) -> None:
        """The time is up."""
        self.overran = True
        self.task.cancel()


class Dispatcher:
    """The requests of one instance."""

    def __init__(
        self,
        serving: Serving,
        handlers: Mapping[str, Handler],
        answers: Answers,
        limits: Limits,
        parts: Parts,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._serving, self._handlers, self._answers = serving, dict(handlers), answers
        self._limits, self._parts, self._metrics, self._log = limits, parts, metrics, log
        self._slots = {
            False: Slots(limits.at_once, limits.per_caller),
            True: Slots(limits.waiting, limits.per_caller),
        }
        self._describing = Slots(DESCRIBING, PER_DESCRIBING)
        self._running = {
            False: metrics.gauge("endpoint_handlers", "working"),
            True: metrics.gauge("endpoint_handlers", "waiting"),
        }
        self._ok = metrics.counter("endpoint_requests", "ok")
        self._seconds = metrics.histogram("endpoint_request_seconds")
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns: Turns[_Job] = Turns(self._run, self._waits, self._lost, self._tasks)
        self.draining = self.closed = False
        """Whether only what the class rail had brought is still taken, and whether nothing is."""

    def take(self, message: Msg) -> None:
        """A frame of one of the rails."""
        if self.closed:
            return
        try:
            verdict = self._serving.judge(message.subject, message.headers or (), message.data)
            if type(verdict) is Accepted:
                self._accept(verdict)
            elif type(verdict) is Describes:
                self._describe(verdict)
            elif type(verdict) is Refused:
                if (cause := verdict.refusal.__cause__) is not None:
                    self._checked(cause)
                self._refuse(verdict.id, verdict.refusal, verdict.reply)
            elif type(verdict) is Discard:
                self._metrics.counter("endpoint_discarded", verdict.why.value).inc()
                self._log.warning("endpoint_discarded", reason=verdict.why.value)
        except Exception as error:  # a fault of ours in one request is not that of the next one
            self._metrics.counter("endpoint_handler_failures", "server").inc()
            self._log.error("endpoint_request_failed", why=told(error))

    def _accept(self, accepted: Accepted) -> None:
        request, contract, reply = accepted.request, accepted.contract, accepted.reply
        key = None
        if contract.idempotent:
            key = Key(accepted.origin.caller, contract.command, request.id)
            if self._repeats(key, reply):
                return
        slots = self._slots[contract.waits]
        if self.draining and accepted.origin.route != "one":
            refusal = Refusal(Code.FAILED_PRECONDITION, "the instance is about to stop", Outcome.NOT_EXECUTED)
        elif slots.take(accepted.origin.dot):
            self._start(accepted, slots, key)
            return
        else:
            refusal = Refusal(Code.RESOURCE_EXHAUSTED, "too many requests run now", Outcome.NOT_EXECUTED)
        self._refuse(request.id, refusal, reply)

    def _repeats(self, key: Key, reply: str | None) -> bool:
        """Answer a request that was here before; False for a first one."""
        found = self._parts.results.find(key, asyncio.get_running_loop().time())
        if found is None:
            return False
        if isinstance(found, bytes):
            self._metrics.counter("endpoint_repeats", "kept").inc()
            self._answers.give(reply, key.id, found)
        elif found.join(reply):
            self._metrics.counter("endpoint_repeats", "running").inc()
        else:
            # The first one runs: this says nothing of its effect.
            refusal = Refusal(Code.RESOURCE_EXHAUSTED, "too many repeats of this request wait", Outcome.UNKNOWN)
            self._refuse(key.id, refusal, reply)
        return True

    def _start(self, accepted: Accepted, slots: Slots, key: Key | None) -> None:
        asked, longest = accepted.request.deadline_ms, self._limits.longest
        seconds = longest if asked is None else min(longest, asked / 1000)
        if key is not None:
            self._parts.results.begin(key)
        begun = asyncio.get_running_loop().time()
        self._turns.put(_Job(accepted, slots, key, begun, begun + seconds))

    def _waits(self, job: _Job) -> None:
        """A handler waits for something: from here on its time is watched."""
        loop = job.task.get_loop()
        job.timer = loop.call_at(job.deadline, job.overrun)
        self._running[job.accepted.contract.waits].inc()

    def _lost(self, job: _Job) -> None:
        """The server stops before a handler began."""
        self._fail(job.accepted, job, Refusal(Code.UNAVAILABLE, "the instance stops", Outcome.NOT_EXECUTED))
        self._ended(job, asyncio.get_running_loop().time())

    def _ended(self, job: _Job, now: float) -> None:
        """The place is free again, whatever became of the request."""
        if job.timer is not None:
            job.timer.cancel()
            self._running[job.accepted.contract.waits].dec()
        self._seconds.observe(now - job.begun)
        job.slots.give_back(job.accepted.origin.dot)

    async def _run(self, job: _Job) -> None:
        """One handler and its answer."""
        loop = asyncio.get_running_loop()
        try:
            if loop.time() >= job.deadline:
                job.overran = True
                self._fail(job.accepted, job, self._interrupted(job.accepted, job, None))
            else:
                await self._handle(job)
        except Exception as error:  # a fault of ours in one request is not that of the next one
            self._failed("server", job.accepted, error)
            self._fail(job.accepted, job, Refusal(Code.INTERNAL, "the instance failed", Outcome.UNKNOWN))
        finally:
            self._ended(job, loop.time())

    async def _handle(self, job: _Job) -> None:
        accepted = job.accepted
        request, origin = accepted.request, accepted.origin
        call = Call(
            origin.caller,
            request.sender.name,
            request.args,
            request.id,
            request.deadline_ms,
            route=origin.route,
            mode=origin.mode,
            correlation=request.correlation or NO_CORRELATION,
            generation=origin.generation,
            deadline=job.deadline,
            emits=self._parts.emits,
        )
        try:
            if origin.mode:
                call.target = await self._parts.targets.resolve(accepted, call)
            job.dispatched = True
            data = await self._handlers[accepted.contract.command](call)
        except Refusal as refusal:
            self._fail(accepted, job, _honest(refusal, job, call))
        except asyncio.CancelledError as error:
            self._fail(accepted, job, self._interrupted(accepted, job, error))
        except Exception as error:
            self._failed("raised", accepted, error)
            outcome = Outcome.UNKNOWN if job.dispatched else Outcome.NOT_EXECUTED
            self._fail(accepted, job, Refusal(Code.INTERNAL, "the handler failed", outcome))
        else:
            self._finish(accepted, job, data)

    def _interrupted(self, accepted: Accepted, job: _Job, error: BaseException | None) -> Refusal:
        """What is told of a handler that was cancelled: its time was up, or the server stops (C13.3-42)."""
        outcome = Outcome.UNKNOWN if job.dispatched else Outcome.NOT_EXECUTED
        if error is not None and not job.task.cancelling():
            # Nobody cancelled it: what it awaited was cancelled, and that is a failure of its own.
            self._failed("raised", accepted, error)
            return Refusal(Code.INTERNAL, "the handler failed", outcome)
        if not job.overran:
            return Refusal(Code.UNAVAILABLE, "the instance stops", outcome)
        self._failed("overrun", accepted, error or TimeoutError())
        return Refusal(Code.DEADLINE_EXCEEDED, "the handler ran for too long", outcome)

    def _finish(self, accepted: Accepted, job: _Job, data: JsonValue) -> None:
        """The handler gave its data: an answer within the contract, or the refusal that it is none (C13.3-36, -41)."""
        request = accepted.request
        try:
            fault = accepted.contract.output.check(data)
            why = None if fault is None else f"{fault.field} {fault.why}"
        except Exception as error:  # a check of the author's own
            self._checked(error)
            self._fail(accepted, job, Refusal(Code.INTERNAL, "the check of the result failed", Outcome.EXECUTED))
            return
        if why is None:
            try:
                answer = encode_data(request.id, data)
            except EnvelopeError as error:
                why = f"{error.field} {error.why}"
            else:
                self._ok.inc()
                self._answer(accepted, job, answer, kept=answer)
                return
        self._failed("result", accepted, why)
        self._fail(accepted, job, Refusal(Code.INTERNAL, "the result is not what the contract says", Outcome.EXECUTED))

    def _fail(self, accepted: Accepted, job: _Job, refusal: Refusal) -> None:
        answer = encode_refusal(accepted.request.id, refusal)
        self._told(refusal)
        # What was not executed has no result: a repeat is fresh work.
        self._answer(accepted, job, answer, kept=None if refusal.outcome == Outcome.NOT_EXECUTED else answer)

    def _answer(self, accepted: Accepted, job: _Job, answer: bytes, kept: bytes | None) -> None:
        """To the caller, and to all repeats that wait."""
        identity = accepted.request.id
        self._answers.give(accepted.reply, identity, answer)
        if job.key is not None:
            for reply in self._parts.results.end(job.key, kept, asyncio.get_running_loop().time()):
                self._answers.give(reply, identity, answer)

    def _refuse(self, identity: str, refusal: Refusal, reply: str | None) -> None:
        self._told(refusal)
        if reply is not None:
            self._answers.give(reply, identity, encode_refusal(identity, refusal))

    def _told(self, refusal: Refusal) -> None:
        code = label(refusal.code if is_code(refusal.code) else Code.INTERNAL)
        self._metrics.counter("endpoint_requests", code).inc()
        self._log.info("endpoint_refused", code=code)

    def _checked(self, error: BaseException) -> None:
        """A check that the author supplied has raised: a fault of the contract, of no handler."""
        self._metrics.counter("endpoint_handler_failures", "check").inc()
        self._log.error("endpoint_check_failed", why=told(error))

    def _failed(self, kind: str, accepted: Accepted, why: object) -> None:
        self._metrics.counter("endpoint_handler_failures", kind).inc()
        text = told(why) if isinstance(why, BaseException) else why
        self._log.error(f"endpoint_handler_{kind}", command=accepted.contract.command, why=text)

    # ---- describe ----

    def _describe(self, asked: Describes) -> None:
        described = self._parts.described
        if described is None or asked.reply is None:
            return  # nobody hears what a cast would be told
        if not self._describing.take(asked.origin.dot):
            refusal = Refusal(Code.RESOURCE_EXHAUSTED, "too many descriptions are read now", Outcome.NOT_EXECUTED)
            self._refuse(asked.request.id, refusal, asked.reply)
            return
        task = asyncio.create_task(self._tell(asked, described, asked.reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._describing.give_back(asked.origin.dot))

    async def _tell(self, asked: Describes, described: Described, reply: str) -> None:
        identity, caller = asked.request.id, asked.origin.caller
        try:
            async with asyncio.timeout(DESCRIBE_SECONDS):
                answer = await described.answer(caller, asked.origin.generation, identity, self._answers.limit)
        except asyncio.CancelledError:
            self._refuse(identity, Refusal(Code.UNAVAILABLE, "the instance stops", Outcome.NOT_EXECUTED), reply)
            raise
        except Exception as error:
            # A view that fails in a way of its own is one that cannot be read.
            if not isinstance(error, Unavailable):
                self._log.error("endpoint_view_failed", why=told(error))
            self._metrics.counter("endpoint_views", "unavailable").inc()
            why = "the view of callers cannot be read, or is too old"
            self._refuse(identity, Refusal(Code.UNAVAILABLE, why, Outcome.NOT_EXECUTED), reply)
        else:
            self._metrics.counter("endpoint_views", "public" if described.public else "told").inc()
            self._ok.inc()
            self._answers.give(reply, identity, answer)

    # ---- the end ----

    async def settle(self, seconds: float) -> None:
        """Wait for what runs, at most so long; nothing is cancelled."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while self._tasks and (left := end - clock()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    async def stop(self, seconds: float) -> None:
        """Cancel what runs, whose callers are told that nobody knows, and wait for it at most so long."""
        for task in self._tasks:
            task.cancel()
        await self.settle(seconds)


def _honest(refusal: Refusal, job: _Job, call: Call) -> Refusal:
    """A refusal with an outcome that can be true (C13.3-40, C13.3-45)."""
    if not job.dispatched:
        return Refusal(refusal.code, refusal.message, Outcome.NOT_EXECUTED, refusal.details)
    if call.begun and refusal.outcome == Outcome.NOT_EXECUTED:
        return Refusal(refusal.code, refusal.message, Outcome.UNKNOWN, refusal.details)
    return refusal
