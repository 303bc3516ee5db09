"""What an operator writes to grant a call or a live event, and how a record keeps it (C13.9-007). Pure.

A call is ``ENDPOINT:COMMAND[@MODE[=TARGET]]``: the dotted name of an endpoint, a command or ``*`` for all of them, the
mode and the tokens of its target with dots between them. ``*`` without a mode grants untargeted and ``self`` commands,
``@owner`` without a target the holder's own owner. An event is ``ENDPOINT:[CLUSTER/]EVENT``; without a cluster it is
the one that has the endpoint's own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.errors import InvalidName, excerpt
from sidecar.rails.names.tokens import WILDCARD
from sidecar.rails.space.holder import Capability, EventRead

_OWNER = "owner"


def parse_may(text: str, owner: str) -> tuple[Capability, ...]:
    """The capabilities that ``ENDPOINT:COMMAND[@MODE[=TARGET]]`` gives a holder of ``owner``. Raises InvalidName."""
    endpoint, colon, rest = text.partition(":")
    if not colon:
        form = "ENDPOINT:COMMAND[@MODE[=TARGET]], where * is every command"
        raise InvalidName("call", f"{excerpt(text)} is not {form}", "C13.9-007")
    command, at, told = rest.partition("@")
    if not at:
        modes = (UNTARGETED, "self") if command == WILDCARD else (UNTARGETED,)
        return tuple(Capability(endpoint, command, mode) for mode in modes)
    mode, equals, target = told.partition("=")
    if mode == UNTARGETED:
        raise InvalidName("call", f"{excerpt(text)} names no mode after the @", "C13.2-21")
    tokens = tuple(target.split(".")) if equals else (owner,) if mode == _OWNER else ()
    return (Capability(endpoint, command, mode, tokens),)


def parse_hears(text: str) -> EventRead:
    """The event that ``ENDPOINT:[CLUSTER/]EVENT`` lets a holder hear. Raises InvalidName."""
    endpoint, colon, rest = text.partition(":")
    cluster, slash, event = rest.partition("/")
    if not colon or not rest:
        raise InvalidName("event", f"{excerpt(text)} is not ENDPOINT:[CLUSTER/]EVENT", "C13.7-07")
    return EventRead(endpoint, cluster, event) if slash else EventRead(endpoint, endpoint, cluster)


def may_text(one: Capability) -> str:
    """A capability as it is written."""
    mode = f"@{one.mode}" if one.mode else ""
    return f"{one.endpoint}:{one.command}{mode}{'=' if one.target else ''}{'.'.join(one.target)}"


def hears_text(one: EventRead) -> str:
    """An event as it is written; what is read of goals has no text of its own but the endpoint."""
    return f"{one.endpoint}:{one.cluster}/{one.event}" if one.cluster else one.endpoint


def capability_value(one: Capability) -> dict[str, Any]:
    """The JSON object of a capability."""
    return {
        "endpoint": one.endpoint,
        "command": one.command,
        "mode": one.mode,
        "target": list(one.target),
        "journal": one.journal,
    }


def read_capability(value: Mapping[str, Any]) -> Capability:
    """The capability in a JSON object. Raises KeyError, TypeError, InvalidName."""
    texts = (value["endpoint"], value["command"], value["mode"])
    target, journal = value["target"], value["journal"]
    if type(journal) is not bool or not isinstance(target, list) or not all(isinstance(one, str) for one in texts):
        raise TypeError
    return Capability(*texts, tuple(target), journal)


def hears_value(one: EventRead) -> dict[str, str]:
    """The JSON object of an event."""
    return {"endpoint": one.endpoint, "cluster": one.cluster, "event": one.event}


def read_hears(value: Mapping[str, Any]) -> EventRead:
    """The event in a JSON object. Raises KeyError, TypeError, InvalidName."""
    texts = (value["endpoint"], value["cluster"], value["event"])
    if not all(isinstance(one, str) for one in texts):
        raise TypeError
    return EventRead(*texts)
