"""The sample endpoint, ``dev.sidecar.sample``: two instances of it serve in the space main of ``sidecar dev``.

It is the example to read: what is declared here is all that an endpoint needs. ``sidecar ep serve FILE.py:endpoint``
registers an instance and serves it.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Final

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.app import Endpoint
from sidecar.rails.endpoint.call import Call
from sidecar.rails.endpoint.codes import Code, Outcome, Refusal

NAME: Final = "dev.sidecar.sample"
LONGEST_MS: Final = 60_000
_SMALL: Final = {"type": "integer", "minimum": -(2**52), "maximum": 2**52}
_WHOLE: Final = {"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1}
_TOKEN: Final = {"type": "string", "maxLength": 128}


def _object(**members: Any) -> Any:
    """The schema of an object with exactly these members."""
    return {"type": "object", "properties": members, "required": sorted(members), "additionalProperties": False}


endpoint = Endpoint(NAME, protocol=2)
_TEXT: Final = _object(text={"type": "string", "maxLength": 65536})
_MS: Final = _object(ms={"type": "integer", "minimum": 0, "maximum": LONGEST_MS})
_COUNT: Final = _object(count=_WHOLE)
counted = endpoint.event("counted", _COUNT)
_counts = itertools.count(1)


@endpoint.command(input=_TEXT, output=_TEXT, effect="read")
async def echo(call: Call) -> JsonValue:
    """The text again."""
    return call.args


@endpoint.command(input=_object(a=_SMALL, b=_SMALL), output=_object(sum=_WHOLE), effect="read")
async def add(call: Call) -> JsonValue:
    """The sum of two whole numbers."""
    args: Any = call.args
    return {"sum": args["a"] + args["b"]}


@endpoint.command(input=_MS, output=_MS, effect="read", waits=True)
async def sleep(call: Call) -> JsonValue:
    """Slow: the answer comes after so many milliseconds."""
    args: Any = call.args
    await asyncio.sleep(args["ms"] / 1000)
    return call.args


@endpoint.command(input=_object(code={"enum": [code.value for code in Code]}, after={"type": "boolean"}))
async def fail(call: Call) -> JsonValue:
    """Refuses with the code that is asked for, ``after`` its effect or before; the effect is that it counts."""
    args: Any = call.args
    if not args["after"]:
        raise call.refuse(args["code"], "refused before the effect, as asked")
    call.effect()
    next(_counts)
    raise Refusal(args["code"], "refused after the effect, as asked", Outcome.EXECUTED)


@endpoint.command(output=_COUNT)
async def count(call: Call) -> JsonValue:
    """Counts one further, and tells it: an effect that happened twice shows."""
    call.effect()
    data: JsonValue = {"count": next(_counts)}
    await call.emit(counted, data)
    return data


@endpoint.command(output=_object(owner=_TOKEN, actor=_TOKEN, uid=_TOKEN), effect="read", modes=("self",))
async def whoami(call: Call) -> JsonValue:
    """The caller, as the broker has proved it: nothing of it is from the payload."""
    caller = call.caller
    return {"owner": caller.principal.owner, "actor": caller.principal.actor, "uid": caller.uid}
