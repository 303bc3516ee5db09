"""An endpoint that answers what nobody should have to see, for the tests of the command line."""

import asyncio

from sidecar.base.strictjson import JsonValue
from sidecar.rails import Call, Endpoint

NASTY = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\u2028\r\n\x00"
endpoint = Endpoint("com.example.hostile", protocol=2)
ANY: dict[str, JsonValue] = {"type": "object"}
SIZE: dict[str, JsonValue] = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 2_000_000}},
    "required": ["size"],
    "additionalProperties": False,
}
began = endpoint.event("began", ANY)


@endpoint.command(output=ANY, effect="read")
async def control(call: Call) -> JsonValue:
    """Control characters in names and values."""
    return {"text": NASTY, NASTY: [NASTY]}


@endpoint.command()
async def refuse(call: Call) -> JsonValue:
    """Control characters in a refusal."""
    raise call.refuse("com.example.hostile", NASTY, [{"kind": "com.example.detail", "text": NASTY}])


@endpoint.command(input=SIZE, output=ANY, effect="read")
async def huge(call: Call) -> JsonValue:
    """As many characters as are asked for."""
    args = call.args
    assert isinstance(args, dict)
    size = args["size"]
    assert isinstance(size, int)
    return {"text": "x" * size}


@endpoint.command(waits=True)
async def hang(call: Call) -> JsonValue:
    """Never answers; an event tells that it has begun."""
    await call.emit(began, {"id": call.id})
    await asyncio.Event().wait()
    return None


@endpoint.command(output=ANY)
async def wrong(call: Call) -> JsonValue:
    """Gives what its contract does not."""
    call.effect()
    return 7


@endpoint.command()
async def broken(call: Call) -> JsonValue:
    """Fails in the middle."""
    call.effect()
    raise RuntimeError(NASTY)
