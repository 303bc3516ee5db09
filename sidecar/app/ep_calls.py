"""One command at an endpoint, from what was typed to a request whose arguments keep the contract."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from sidecar.app.ep_args import BadArguments, Given, arguments, misfit
from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.caller import Caller
from sidecar.rails.endpoint.calls_types import Answer, To
from sidecar.rails.endpoint.contracts import EPHEMERAL, Contract
from sidecar.rails.endpoint.envelope import Bind

MAX_TRACEPARENT: Final = 256
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was typed. ``seconds`` bounds the whole of it, what has to be looked up too."""

    endpoint: str
    command: str
    given: Given
    to: To | None = None
    instance: str | None = None
    bind: Bind | None = None
    id: str | None = None
    seconds: float = 15.0
    traceparent: str | None = None

    @property
    def how(self) -> dict[str, Any]:
        """The options that every verb of a caller has."""
        trace = None if self.traceparent is None else {"traceparent": self.traceparent}
        return {"seconds": self.seconds, "target": self.to, "id": self.id, "correlation": trace}

    @property
    def where(self) -> dict[str, Any]:
        """And which instance is to have it."""
        return {"instance": self.instance, "bind": self.bind}


def check_traceparent(text: str) -> str:
    """A W3C traceparent (C13.3-32). Raises BadArguments."""
    if len(text) > MAX_TRACEPARENT or _TRACEPARENT.fullmatch(text) is None or (text[:2] == "00" and len(text) != 55):
        raise BadArguments("a traceparent is 00-TRACE-SPAN-FLAGS, as W3C Trace Context writes it")
    return text


async def prepared(caller: Caller, asked: Asked) -> JsonValue:
    """The arguments as the contract of the command takes them. Nothing of the command was sent so far.

    Raises BadArguments, which names the member that is wrong, and CallError when the endpoint cannot be resolved.
    """
    return check(await caller.contract(asked.endpoint, asked.command, seconds=asked.seconds), asked)


def check(contract: Contract, asked: Asked) -> JsonValue:
    """The arguments as the contract takes them. Raises BadArguments."""
    if contract.contract_class != EPHEMERAL:
        raise BadArguments(f"{asked.command} is a {contract.contract_class} command: it is submitted, not called")
    modes = contract.modes
    if modes and asked.to is None:
        raise BadArguments(f"{asked.command} is targeted: it needs --target with one of {', '.join(modes)}")
    if asked.to is not None and asked.to.mode not in modes:
        takes = f"only {', '.join(modes)}" if modes else "no target"
        raise BadArguments(f"{asked.command} takes {takes}")
    value = arguments(asked.given, contract.input.schema)
    if (fault := contract.input.check(value)) is not None:
        raise BadArguments(misfit(value, contract.input.schema) or f"{fault.field or 'the arguments'} {fault.why}")
    return value


async def called(caller: Caller, asked: Asked, args: JsonValue) -> Answer:
    """The answer of any one instance, or of the one that was named. Raises CallError."""
    return await caller.invoke(asked.endpoint, asked.command, args, **asked.how, **asked.where)
