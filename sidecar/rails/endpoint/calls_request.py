"""Requests as they are sent: the subject, and the bytes of the body (C13.2-16..25, C13.3-10..30). Pure.

What is the same in every call of a command is written once and kept; ``EndpointRequest.encode`` is the plain form of
the same bytes, and the tests hold the two to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from sidecar.base.strictjson import JsonValue, NotJson, check_value
from sidecar.rails.endpoint.calls_types import To
from sidecar.rails.endpoint.codes import Code, unsent
from sidecar.rails.endpoint.contracts import DESCRIBE, Contract, closure_digest
from sidecar.rails.endpoint.envelope import MAX_DEADLINE_MS, VERSION, Bind, Op, Sender, Target
from sidecar.rails.names import endpoint as subjects
from sidecar.rails.names.endpoint import UNTARGETED
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.names.tokens import GRAMMARS, endpoint_token

VOID_DIGEST: Final = closure_digest({"type": "null"})
NONCE_LENGTH: Final = 32
"""Characters: 128 bits in hexadecimal, so that no two nonces differ in case alone (C13.2-17)."""
_ID: Final = GRAMMARS["id"]
_ANY_NONCE: Final = "0" * NONCE_LENGTH
_SELF: Final = "self"
_THREE: Final = ("handle", "exact")


class Rail:
    """The subjects of one lifecycle, on the legacy rail or, with a ``generation``, on the versioned one (C13.2-25)."""

    def __init__(self, space: str, lifecycle: Lifecycle, generation: str | None) -> None:
        """InvalidName for names that are none."""
        self.issued = generation is not None
        self._names: dict[str, str | int] = {"space": space, **lifecycle.names}
        if generation is not None:
            self._names["generation"] = generation
        self.replies = subjects.REPLIES[self.issued].filter(**self._names)
        """What the caller subscribes: every reply to it, of whichever endpoint (C13.2-47)."""
        self.reply_prefix, self.caller = self.replies.split("*.*.*")
        self.caller = self.caller.removesuffix("*")
        """``.<owner>.<actor>.<uid>.`` and the generation: what stands before the nonce."""
        self.sentinel = subjects.SENTINELS[self.issued].build(**self._names, nonce=_ANY_NONCE).removesuffix(_ANY_NONCE)
        """What the nonce completes to the subject on which the broker alone speaks (C13.3-49)."""

    def requests(self, route: str, endpoint: str, command: str, instance: str | None, to: To | None) -> str:
        """A request subject without its nonce. CallFailed for names that are none, and for a target that lacks some."""
        mode = UNTARGETED if to is None else to.mode
        template = subjects.REQUESTS.get((route, mode, self.issued))
        if template is None:
            raise unsent(Code.TARGET_MISMATCH, "there is no such authorization mode")
        names: dict[str, str | int] = {**self._names, "command": command, "nonce": _ANY_NONCE}
        if instance is not None:
            names["instance"] = instance
        if to is not None and mode != _SELF:
            names["to_owner"] = to.owner or ""
            if mode in _THREE:
                names |= {"to_actor": to.actor or "", "to_uid": to.uid or ""}
        try:
            return template.build(**names, endpoint=endpoint_token(endpoint)).removesuffix(_ANY_NONCE)
        except InvalidName as error:
            raise unsent(Code.BAD_REQUEST, str(error)) from None


class Plan:
    """One command of one endpoint on one route, with everything in its request that no call changes."""

    __slots__ = ("_call", "_cast", "_rest", "contract", "endpoint", "prefix", "route", "token")

    def __init__(
        self,
        rail: Rail,
        sender: Sender,
        endpoint: str,
        contract: Contract | None,
        *,
        route: str = "one",
        instance: str | None = None,
        to: To | None = None,
    ) -> None:
        """Without a contract: ``describe``, which pins nothing (C13.3-15). CallFailed for what must not be sent."""
        command = DESCRIBE if contract is None else contract.command
        if contract is not None:
            _check_target(contract, to)
        self.contract, self.endpoint, self.route = contract, endpoint, route
        self.prefix = rail.requests(route, endpoint, command, instance, to)
        self.token = endpoint_token(endpoint)
        op = Op(endpoint, command)
        members: dict[str, JsonValue] = {"endpoint": op.endpoint, "command": op.command}
        if contract is not None:
            members |= {"inputDigest": contract.input_digest, "outputDigest": contract.output_digest}
        sent = {name: value for name, value in sender._asdict().items() if value is not None}
        contract_class = "ephemeral" if contract is None else contract.contract_class
        self._call = self._head(members, contract_class, sent, expected=True)
        self._cast = self._head(members, contract_class, sent, expected=False)
        target = None if to is None or to.mode == _SELF else _body_target(to)
        self._rest = b"" if target is None else b',"target":' + orjson.dumps(target)

    @staticmethod
    def _head(op: JsonValue, contract_class: str, sender: JsonValue, *, expected: bool) -> bytes:
        rest = orjson.dumps({"op": op, "class": contract_class, "replyExpected": expected, "from": sender})
        return b'","' + rest[2:-1]

    def body(
        self,
        identity: str,
        args: JsonValue,
        deadline_ms: int | None,
        correlation: Mapping[str, str] | None,
        bind: Bind | None = None,
    ) -> bytes:
        """The bytes of one request; without a deadline it is a cast (C13.3-17). ``args`` were checked."""
        parts = [
            b'{"v":%d,"id":"%s' % (VERSION, identity.encode()),
            self._cast if deadline_ms is None else self._call,
        ]
        if args is not None:
            parts += (b',"args":', orjson.dumps(args))
        if deadline_ms is not None:
            parts.append(b',"deadlineMs":%d' % deadline_ms)
        parts.append(self._rest)
        if bind is not None:
            parts.append(b',"bind":' + orjson.dumps({"instanceId": bind.instance, "epoch": bind.epoch}))
        if correlation is not None and len(correlation) == 1 and "traceparent" in correlation:
            parts.append(b',"correlation":{"traceparent":%b}' % orjson.dumps(correlation["traceparent"]))
        elif correlation is not None:
            parts += (b',"correlation":', orjson.dumps(dict(correlation)))
        parts.append(b"}")
        return b"".join(parts)


def _body_target(to: To) -> dict[str, str | int]:
    target = Target(to.owner or "", to.actor or "", to.uid or "", to.mapping_revision)
    value: dict[str, str | int] = {"owner": target.owner, "actor": target.actor, "lifecycleUid": target.lifecycle_uid}
    if target.mapping_revision is not None:
        value["mappingRevision"] = target.mapping_revision
    return value


def _check_target(contract: Contract, to: To | None) -> None:
    """The mode is one that the contract admits, and the target is whole (C13.2-20, C13.3-21)."""
    mode = UNTARGETED if to is None else to.mode
    if mode not in (contract.modes or (UNTARGETED,)):
        admitted = ", ".join(contract.modes) or "no target"
        raise unsent(Code.TARGET_MISMATCH, f"{contract.command} admits {admitted}")
    if to is None or mode == _SELF:
        if to is not None and to[1:] != (None,) * 4:
            raise unsent(Code.TARGET_MISMATCH, "self is the caller, and names nobody else")
        return
    named = (("owner", to.owner), ("actor", to.actor), ("uid", to.uid))
    if not all(type(value) is str and GRAMMARS[name].accepts(value) for name, value in named):
        raise unsent(Code.TARGET_MISMATCH, f"{mode} needs an owner, an actor and a lifecycle uid")


def check_bind(bind: Bind | None, route: str, command: str, instance: str | None) -> None:
    """Where a bind may stand, and what it may say (C13.3-25, -26). Raises CallFailed."""
    if bind is None:
        return
    if route == "all" or command == DESCRIBE:
        raise unsent(Code.BAD_REQUEST, "bind stands on single requests alone, and not on describe")
    if not GRAMMARS["instance"].accepts(bind.instance) or type(bind.epoch) is not int or bind.epoch < 0:
        raise unsent(Code.BAD_REQUEST, "bind is no instance and epoch")
    if instance is not None and bind.instance != instance:
        raise unsent(Code.BAD_REQUEST, "bind names another instance than the request")


def check_seconds(seconds: float | None) -> float:
    """A bounded time of at least a millisecond, at most an hour; never none (C13.3-30, C13.5-26, C13.8-40)."""
    if type(seconds) not in (int, float) or not 0.001 <= seconds <= MAX_DEADLINE_MS / 1000:  # type: ignore[operator]
        raise unsent(Code.BAD_REQUEST, "a request waits for a bounded time of at least a millisecond")
    return float(seconds)  # type: ignore[arg-type]


def checked_args(contract: Contract, args: JsonValue) -> JsonValue:
    """What is sent for these arguments (C13.3-28): a command that takes none is called with None or ``{}``. CallFailed
    for what its schema refuses, and for what JSON cannot hold."""
    if contract.input_digest == VOID_DIGEST and args == {}:
        args = None
    if (fault := contract.input.check(args)) is not None:
        raise unsent(Code.BAD_REQUEST, f"args {fault.field} {fault.why}")
    try:
        check_value(args, "args")
    except NotJson as error:
        raise unsent(Code.BAD_REQUEST, str(error)) from None
    return args


def check_id(identity: str) -> str:
    """An id that the caller chose (C13.3-10)."""
    if not _ID.accepts(identity):
        raise unsent(Code.BAD_REQUEST, "id is not 1 to 64 characters of A-Z a-z 0-9 _ -")
    return identity
