"""An endpoint for fault tests, served by real processes: each of its effects is a line in a file before anything else
happens, so that it is counted also when the process dies behind it."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from sidecar.base.strictjson import JsonValue
from sidecar.rails import Call, Code, Endpoint
from sidecar.rails.endpoint.codes import Outcome, Refusal

NAME: Final = "com.acme.chaos"
LEDGER: Final = "CHAOS_LEDGER"
BEGAN, EFFECT = "began", "effect"
endpoint = Endpoint(NAME, protocol=2)
_TEXT: Final[dict[str, JsonValue]] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


def mark(what: str, call: Call) -> None:
    """One line, written by one call of the system: nothing of it is in this process when it dies."""
    ledger = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(ledger, f"{what} {call.id} {os.getpid()}\n".encode())
    finally:
        os.close(ledger)


@endpoint.command(input=_TEXT, output=_TEXT, effect="read")
async def echo(call: Call) -> JsonValue:
    """The text again."""
    return call.args


@endpoint.command()
async def count(call: Call) -> JsonValue:
    """One effect."""
    call.effect()
    mark(EFFECT, call)
    await asyncio.sleep(0)  # others run between the effect and the answer
    return None


@endpoint.command(idempotent=True)
async def once(call: Call) -> JsonValue:
    """One effect for each id."""
    return await count(call)


@endpoint.command(waits=True)
async def before(call: Call) -> JsonValue:
    """Hangs in front of its effect."""
    mark(BEGAN, call)
    await asyncio.Event().wait()
    return None


@endpoint.command(waits=True)
async def behind(call: Call) -> JsonValue:
    """Hangs behind its effect."""
    call.effect()
    mark(EFFECT, call)
    await asyncio.Event().wait()
    return None


@endpoint.command()
async def refuse(call: Call) -> JsonValue:
    """Refuses every second time behind its effect, with more details than a message has room for."""
    details: Any = [{"kind": "com.acme.much", "text": "x" * 2**20}]
    if int(call.id[-1], 16) % 2:
        call.effect()
        mark(EFFECT, call)
        raise Refusal(Code.CONFLICT, "done", Outcome.EXECUTED, details)
    raise call.refuse(Code.FAILED_PRECONDITION, "not done", details)
