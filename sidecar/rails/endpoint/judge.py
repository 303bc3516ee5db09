"""What a serving instance makes of one frame, before any handler runs: the responder order of 13.3, and nothing else.

Pure: a frame goes in, a verdict comes out. A frame is discarded when it is no live request to this instance; a request
is refused with the code of the first check that it fails; what is left may be handed to a handler. What the subjects of
one caller have in common is read once and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.codes import Code, Details, Outcome, Refusal
from sidecar.rails.endpoint.contracts import DESCRIBE, EPHEMERAL, JOURNAL, Contract, Contracts
from sidecar.rails.endpoint.envelope import (
    NO_ID,
    TRACEPARENT,
    VERSION,
    Body,
    EndpointRequest,
    Op,
    Sender,
    read_request,
)
from sidecar.rails.endpoint.shapes import VOID
from sidecar.rails.names import endpoint, headers
from sidecar.rails.names.endpoint import UNTARGETED, Request
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.limits import MAX_RAIL_SUBJECT, MAX_SAFE_INTEGER
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.tokens import GRAMMARS, endpoint_token

REMEMBERED: Final = 2_048
"""Origins that are kept: callers times the forms in which they ask."""
_is_nonce: Final = re.compile(GRAMMARS["nonce"].shape).fullmatch
"""The shape is all of its grammar."""


class Ignored(StrEnum):
    """Why a frame is discarded unanswered; the values are metric labels."""

    REDIRECTED = "redirected"
    """It carries the headers of a stored message: a read put it here (C13.3-02)."""
    NO_SENDER = "no_sender"
    """Its subject is no request form, so it names nobody (C13.2-22)."""
    ELSEWHERE = "elsewhere"
    """Its subject is of another space, endpoint or instance."""


class Discard(NamedTuple):
    """No answer, no effect."""

    why: Ignored


class Refused(NamedTuple):
    """A refusal; ``reply`` is where it goes, None when nothing may be answered (C13.3-18)."""

    id: str
    refusal: Refusal
    reply: str | None


class Origin(NamedTuple):
    """What a request subject says but for its nonce. ``reply`` is the subject of the answer up to there; ``named`` are
    the target tokens; ``dot`` is the caller as one text."""

    route: str
    mode: str
    command: str
    caller: Lifecycle
    sender: str
    named: Mapping[str, str]
    generation: str | None
    reply: str
    dot: str


class Accepted(NamedTuple):
    """Ready for its handler. ``reply`` is None for a cast."""

    request: EndpointRequest
    contract: Contract
    origin: Origin
    reply: str | None

    @property
    def caller(self) -> Lifecycle:
        return self.origin.caller

    @property
    def args(self) -> JsonValue:
        return self.request.args


class Describes(NamedTuple):
    """A request to describe the endpoint (C13.7-65)."""

    request: EndpointRequest
    origin: Origin
    reply: str | None


Verdict = Discard | Refused | Accepted | Describes


class _Plain(NamedTuple):
    """What was right in a request of one origin, so that the next one which says the same need not be read again."""

    contract: Contract
    op: dict[str, Any]
    sender: dict[str, Any]
    told: Sender
    """``sender`` as it is handed on."""
    asked: Op
    """``op`` likewise."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What one instance serves: the dotted name of the endpoint, the instance and its epoch, and its contracts;
    ``describes``: it has a descriptor too."""

    space: str
    endpoint: str
    instance: str
    epoch: int
    contracts: Contracts
    describes: bool = False
    _origins: dict[str, Origin] = field(default_factory=dict, init=False, repr=False, compare=False)
    _plain: dict[str, _Plain] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Of those in ``_origins``, by the same key."""

    def judge(self, subject: str, header_names: Iterable[str], data: bytes) -> Verdict:
        """The verdict about one frame; never raises for what a frame holds."""
        if headers.carries_provenance(header_names):
            return Discard(Ignored.REDIRECTED)
        head, _, nonce = subject.rpartition(".")
        origin = self._origins.get(head)
        if origin is None:
            try:
                found = self._read(subject)
            except InvalidName:
                return Discard(Ignored.NO_SENDER)
            if found is None:
                return Discard(Ignored.ELSEWHERE)
            origin = self._remember(head, found)
        elif len(subject) > MAX_RAIL_SUBJECT or _is_nonce(nonce) is None:
            return Discard(Ignored.NO_SENDER)
        body = Body(data)
        if (plain := self._plain.get(head)) is not None and (request := _plainly(plain, body)) is not None:
            return Accepted(request, plain.contract, origin, origin.reply + nonce)
        reply = origin.reply + nonce if body.answered else None
        try:
            request = read_request(body)
            self._check_op(origin, request)
            if origin.command == DESCRIBE and self.describes:
                _check_describe(origin, request)
                return Describes(request, origin, reply)
            contract = self._agreed(origin, request)
            self._learn(head, contract, request, body.members)
            return Accepted(request, contract, origin, reply)
        except Refusal as refusal:
            return Refused(body.id, refusal, reply)

    def _read(self, subject: str) -> Origin | None:
        """The origin of a request to this instance, None of one to another. Raises InvalidName for no request."""
        asked = endpoint.parse_request(subject)
        values = asked.values
        caller = Lifecycle(Principal(values["owner"], values["actor"]), values["uid"])
        if not self._is_meant(asked):
            return None
        reply = asked.reply(self.instance, self.epoch).removesuffix(values["nonce"])
        return Origin(
            asked.route,
            asked.mode,
            values["command"],
            caller,
            asked.sender,
            asked.target,
            values.get("generation"),
            reply,
            caller.dot,
        )

    def _remember(self, head: str, origin: Origin) -> Origin:
        if len(self._origins) >= REMEMBERED:
            oldest = next(iter(self._origins))
            del self._origins[oldest]
            self._plain.pop(oldest, None)
        self._origins[head] = origin
        return origin

    def _learn(self, head: str, contract: Contract, request: EndpointRequest, members: dict[str, Any] | None) -> None:
        """Remember what an accepted request says in the same words as others of its origin: nothing of any length."""
        if members is None or request.target is not None or request.goal is not None:
            return
        op, sender = members["op"], members["from"]
        if len(op) == 4 and sender.keys() == _NAMED:
            self._plain[head] = _Plain(contract, op, sender, request.sender, request.op)

    def _is_meant(self, asked: Request) -> bool:
        values = asked.values
        return (
            values["space"] == self.space
            and values["endpoint"] == endpoint_token(self.endpoint)
            and values.get("instance", self.instance) == self.instance
        )

    def _check_op(self, origin: Origin, request: EndpointRequest) -> None:
        """What stands before the contract: the op of the subject, and the fence."""
        if request.op.endpoint != self.endpoint or request.op.command != origin.command:
            raise _refused(Code.OP_MISMATCH, "op is not the endpoint and command of the subject")
        self._check_bind(origin, request)

    def _agreed(self, origin: Origin, request: EndpointRequest) -> Contract:
        """The contract that the request keeps, with its subject. Raises Refusal."""
        contract = self.contracts.get(origin.command)
        if contract is None:
            raise _refused(Code.UNIMPLEMENTED, "this endpoint has no such command")
        _check_target(origin, request, contract.modes)
        _check_sender(origin, request, contract.contract_class)
        if (request.goal is not None) is not contract.action:
            raise _refused(Code.BAD_REQUEST, "goalId stands exactly on actions")
        if request.op.input_digest != contract.input_digest or request.op.output_digest != contract.output_digest:
            raise _refused(Code.CONTRACT_MISMATCH, "the pinned digests are missing or not those of this contract")
        try:
            fault = contract.input.check(request.args)
            if fault is not None:
                what = f"args{'.' * bool(fault.field)}{' '.join(fault)}"
        except Exception as error:  # a check of the author's own
            raise _refused(Code.INTERNAL, "the check of the arguments failed") from error
        if fault is not None:
            raise _refused(Code.BAD_REQUEST, "args are not empty" if contract.input is VOID else what)
        return contract

    def _check_bind(self, origin: Origin, request: EndpointRequest) -> None:
        """The fence (C13.2-53): it stands before the contract, so that a split class is not reported as a mismatch."""
        bind = request.bind
        if bind is None:
            return
        if origin.route == "all" or request.op.command == DESCRIBE:
            raise _refused(Code.BAD_REQUEST, "bind stands on single requests alone, and not on describe")
        if origin.route == "inst" and bind.instance != self.instance:
            raise _refused(Code.BAD_REQUEST, "bind names another instance than the subject")
        if (bind.instance, bind.epoch) == (self.instance, self.epoch):
            return
        code = Code.EXPIRED if bind.instance == self.instance else Code.FAILED_PRECONDITION
        detail: Details = (
            {
                "kind": headers.DETAIL_BIND_REFUSED,
                "endpoint": self.endpoint,
                "command": request.op.command,
                "boundTo": {"instanceId": bind.instance, "epoch": bind.epoch},
                "servedBy": {"instanceId": self.instance, "epoch": self.epoch},
            },
        )
        raise Refusal(code, "bound to another incarnation", Outcome.NOT_EXECUTED, detail)


_NAMED: Final = {"id", "name"}
_ALWAYS: Final = 7
"""Members of the shortest plain request."""


def _plainly(plain: _Plain, body: Body) -> EndpointRequest | None:
    """The request in a body, if it differs from an accepted one of its origin in nothing but its id, arguments,
    deadline and trace, and these are right: most are so. None for every other one, which is for ``read_request``."""
    found = body.members
    if found is None or body.id == NO_ID:
        return None
    get = found.get
    deadline, trace, args, contract = get("deadlineMs"), get("correlation"), get("args"), plain.contract
    if (
        # All of the names below are there, so that there is no other.
        len(found) != _ALWAYS + ("args" in found) + ("correlation" in found)
        or get("op") != plain.op
        or get("from") != plain.sender
        or get("replyExpected") is not True
        or get("class") != contract.contract_class
        or get("v") != VERSION
        or found["v"] is True
        or type(deadline) is not int
        or not 0 < deadline <= MAX_SAFE_INTEGER
    ):
        return None
    if "correlation" in found:
        if type(trace) is not dict or len(trace) != 1 or type(parent := trace.get("traceparent")) is not str:
            return None
        if TRACEPARENT.fullmatch(parent) is None:
            return None
    try:
        if contract.input.check(args) is not None:
            return None
    except Exception:  # a check of the author's own
        return None
    return EndpointRequest(
        body.id, plain.asked, contract.contract_class, True, plain.told, args, deadline, None, None, None, trace
    )


def _check_describe(origin: Origin, request: EndpointRequest) -> None:
    """Describe is untargeted and ephemeral, and has neither digests nor arguments (C13.3-15, C13.7-65)."""
    _check_target(origin, request, ())
    _check_sender(origin, request, EPHEMERAL)
    if request.goal is not None:
        raise _refused(Code.BAD_REQUEST, "goalId stands exactly on actions")
    if request.op.input_digest is not None or request.op.output_digest is not None:
        raise _refused(Code.CONTRACT_MISMATCH, "describe has no digests")
    if request.args is not None:
        raise _refused(Code.BAD_REQUEST, "args are not empty")


def _check_sender(origin: Origin, request: EndpointRequest, contract_class: str) -> None:
    if request.sender.id != origin.sender:
        raise _refused(Code.SENDER_MISMATCH, "from.id is not the sender of the subject")
    if request.contract_class != contract_class:
        raise _refused(Code.CLASS_MISMATCH, f"the command is {contract_class}")
    if contract_class == JOURNAL and not request.reply_expected:
        raise _refused(Code.CLASS_MISMATCH, "a journal command is not cast")


def _check_target(origin: Origin, request: EndpointRequest, modes: tuple[str, ...]) -> None:
    """Body target against the mode of the subject (C13.2-29, -39, C13.3-20..22)."""
    if origin.mode not in (modes or (UNTARGETED,)):
        raise _refused(Code.TARGET_MISMATCH, "the command does not admit this authorization mode")
    target = request.target
    if origin.mode in (UNTARGETED, "self"):
        if target is not None:
            raise _refused(Code.TARGET_MISMATCH, "this form has no body target")
        return
    if target is None:
        raise _refused(Code.TARGET_MISMATCH, "this form needs a body target")
    told = {"to_owner": target.owner, "to_actor": target.actor, "to_uid": target.lifecycle_uid}
    if any(told[name] != value for name, value in origin.named.items()):
        raise _refused(Code.TARGET_MISMATCH, "the body target is not that of the subject")


def _refused(code: Code, message: str) -> Refusal:
    return Refusal(code, message, Outcome.NOT_EXECUTED)
