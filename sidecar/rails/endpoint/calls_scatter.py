"""One request to every instance of an endpoint, and what became of each (C13.5-21..26).

The expected set is frozen from the registry before anything is sent. The request goes out once; replies are classed as
they come (``scatter``). When instances are left at the deadline, the registry is read again, to tell those that were
replaced from those that are silent.
"""

from __future__ import annotations

import asyncio
from typing import Final

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.calls_desk import Desk, Job
from sidecar.rails.endpoint.calls_replies import Expected, Origin, answer
from sidecar.rails.endpoint.calls_request import checked_args
from sidecar.rails.endpoint.calls_types import Answer, Scattered
from sidecar.rails.endpoint.calls_wire import Waiting
from sidecar.rails.endpoint.codes import CallError, Code, nobody, unsent
from sidecar.rails.endpoint.contracts import JOURNAL, Contract
from sidecar.rails.endpoint.scatter import MOST_EXPECTED, Class, Live, Scatter
from sidecar.rails.names.tokens import endpoint_token

RECHECK_SECONDS: Final = 2.0
"""For the second reading of the registry, behind the deadline; late replies are heard meanwhile."""
ENDED: Final = frozenset(("exited", "escalated"))
"""States of an instance that is not live (C13.7-61)."""


async def live(desk: Desk, endpoint: str, until: float) -> dict[str, Live]:
    """The live instances that the registry lists now, by instance (C13.5-21). Raises CallFailed."""
    found: dict[str, Live] = {}
    after: str | None = None
    while True:
        args: dict[str, JsonValue] = {"endpoint": endpoint} if after is None else {"endpoint": endpoint, "after": after}
        page = await desk.registry("instances", args, until)
        for row in page["rows"]:
            if row.get("state") not in ENDED:
                found[row["instanceId"]] = Live(row["instanceId"], row["registrationRevision"], row["epoch"])
            desk.newest(endpoint_token(endpoint), row["instanceId"], row["epoch"])
        # A page that does not go on would be asked for again for ever.
        if page.get("next") is None or page["next"] == after:
            return found
        if len(found) > MOST_EXPECTED:
            raise unsent(Code.RESOURCE_EXHAUSTED, f"more than {MOST_EXPECTED} instances of {endpoint} are live")
        after = page["next"]


class _Run:
    """One scatter on its way."""

    def __init__(self, desk: Desk, expected: Expected, frozen: dict[str, Live]) -> None:
        self.desk, self.expected = desk, expected
        self.places: Scatter[Answer | CallError] = Scatter(frozen.values())
        self.enough: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()

    def hear(self, found: Origin, data: bytes) -> None:
        """A reply of whichever instance. It may not raise: it runs where the connection reads."""
        told: Answer | CallError
        try:
            told = answer(self.expected, data, found, self.desk.epochs.get((found.endpoint, found.instance)))
        except CallError as error:
            told = error
            error.endpoint, error.command, error.id = self.expected[:3]
        if self.places.hear(found.instance, found.epoch, told) is not Class.UNEXPECTED:
            self.desk.newest(found.endpoint, found.instance, found.epoch)
        if self.places.settled:
            self.end()

    def end(self) -> None:
        """Everything that is waited for is here, or the deadline."""
        if not self.enough.done():
            self.enough.set_result(True)

    def result(self) -> Scattered:
        places = self.places
        return Scattered(
            id=self.expected.id,
            replies=dict(places.answers),
            missing=places.missing,
            churn=places.churn,
            late=tuple(sorted(places.late)),
            unexpected=tuple(sorted(places.unexpected)),
            duplicate=tuple(sorted(places.duplicate)),
            complete=not places.open and not places.churn,
        )


async def scatter(desk: Desk, job: Job, contract: Contract) -> Scattered:
    """Ask every instance. Raises CallFailed: failed-precondition without an expected set (C13.5-25)."""
    if contract.action or contract.contract_class == JOURNAL:
        raise unsent(Code.CLASS_MISMATCH, f"{contract.command} is submitted to a journal")
    args = checked_args(contract, job.args)
    plan = desk.plan(job.endpoint, contract, "all", None, job.to)
    try:
        frozen = await live(desk, job.endpoint, job.until)
    except CallError as error:
        raise unsent(Code.FAILED_PRECONDITION, f"who is there cannot be read: {error}") from None
    if not frozen:
        raise unsent(Code.FAILED_PRECONDITION, f"the registry has no live instance of {job.endpoint}")
    run = _Run(desk, Expected(job.endpoint, job.command, job.id, contract.output), frozen)
    request = plan.prefix + job.nonce
    waiting = Waiting(plan.token, None, request, desk.wire.rail.sentinel + job.nonce, run.hear)
    waiting.answer = run.enough
    data = plan.body(job.id, args, int(desk.left(job.until) * 1000), job.correlation)
    # The request stays out behind the deadline, for what is late: bounded by the second reading.
    async with desk.wire.out(waiting, job.nonce, data, job.until + 2 * RECHECK_SECONDS):
        timer = run.enough.get_loop().call_at(job.until, run.end)
        try:
            told = await run.enough
        finally:
            timer.cancel()
        if told is None:
            raise nobody(job.endpoint)
        run.places.over()
        if run.places.open:
            await _recheck(run)
    _count(desk, run)
    return run.result()


async def _recheck(run: _Run) -> None:
    """Tell churn from missing; what cannot be read again stays missing (C13.5-23, -24)."""
    until = asyncio.get_running_loop().time() + RECHECK_SECONDS
    try:
        run.places.observe(await live(run.desk, run.expected.endpoint, until))
    except CallError:
        run.places.counted[Class.MISSING] = 0  # nobody was told from anybody; the places stay as they are


def _count(desk: Desk, run: _Run) -> None:
    if desk.metrics is None:
        return
    counted = {**run.places.counted, Class.CHURN: len(run.places.churn), Class.MISSING: len(run.places.missing)}
    for each, number in counted.items():
        if number:
            desk.metrics.counter("endpoint_scatter_replies", each.value).inc(number)
