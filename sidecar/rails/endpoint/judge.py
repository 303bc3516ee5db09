"""What a serving instance makes of one frame, before any handler runs: the responder order of 13.3, and nothing else.

Pure: a frame goes in, a verdict comes out. A frame is discarded when it is no live request to this instance; a request
is refused with the code of the first check that it fails; what is left may be handed to a handler.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.codes import Code, Details, Outcome, Refusal
from sidecar.rails.endpoint.contracts import DESCRIBE, Contract, Contracts
from sidecar.rails.endpoint.envelope import Body, EndpointRequest, read_request
from sidecar.rails.endpoint.shapes import VOID
from sidecar.rails.names import endpoint, headers
from sidecar.rails.names.endpoint import UNTARGETED, Request
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.names.tokens import endpoint_token


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


class Accepted(NamedTuple):
    """Ready for its handler. ``reply`` is None for a cast."""

    request: EndpointRequest
    contract: Contract
    caller: Lifecycle
    reply: str | None

    @property
    def args(self) -> JsonValue:
        return self.request.args


Verdict = Discard | Refused | Accepted


@dataclass(frozen=True, slots=True)
class Serving:
    """What one instance serves: the dotted name of the endpoint, the instance and its epoch, and its contracts."""

    space: str
    endpoint: str
    instance: str
    epoch: int
    contracts: Contracts

    def judge(self, subject: str, header_names: Iterable[str], data: bytes) -> Verdict:
        """The verdict about one frame; never raises for what a frame holds."""
        if headers.carries_provenance(header_names):
            return Discard(Ignored.REDIRECTED)
        try:
            asked = endpoint.parse_request(subject)
            caller = Lifecycle(Principal(asked.values["owner"], asked.values["actor"]), asked.values["uid"])
        except InvalidName:
            return Discard(Ignored.NO_SENDER)
        if not self._is_meant(asked):
            return Discard(Ignored.ELSEWHERE)
        body = Body(data)
        reply = asked.reply(self.instance, self.epoch) if body.answered else None
        try:
            request = read_request(body)
            contract = self._agreed(asked, request)
        except Refusal as refusal:
            return Refused(body.id, refusal, reply)
        return Accepted(request, contract, caller, reply)

    def _is_meant(self, asked: Request) -> bool:
        values = asked.values
        return (
            values["space"] == self.space
            and values["endpoint"] == endpoint_token(self.endpoint)
            and values.get("instance", self.instance) == self.instance
        )

    def _agreed(self, asked: Request, request: EndpointRequest) -> Contract:
        """The contract that the request keeps, with its subject. Raises Refusal."""
        command = asked.values["command"]
        if request.op.endpoint != self.endpoint or request.op.command != command:
            raise _refused(Code.OP_MISMATCH, "op is not the endpoint and command of the subject")
        self._check_bind(asked, request)
        contract = self.contracts.get(command)
        if contract is None:
            raise _refused(Code.UNIMPLEMENTED, "this endpoint has no such command")
        _check_target(asked, request, contract)
        if request.sender.id != asked.sender:
            raise _refused(Code.SENDER_MISMATCH, "from.id is not the sender of the subject")
        if request.contract_class != contract.contract_class:
            raise _refused(Code.CLASS_MISMATCH, f"the command is {contract.contract_class}")
        if (request.goal is not None) is not contract.action:
            raise _refused(Code.BAD_REQUEST, "goalId stands exactly on actions")
        if request.op.input_digest != contract.input_digest or request.op.output_digest != contract.output_digest:
            raise _refused(Code.CONTRACT_MISMATCH, "the pinned digests are missing or not those of this contract")
        if (fault := contract.input.check(request.args)) is not None:
            what = "args are not empty" if contract.input is VOID else f"args{'.' * bool(fault.field)}{' '.join(fault)}"
            raise _refused(Code.BAD_REQUEST, what)
        return contract

    def _check_bind(self, asked: Request, request: EndpointRequest) -> None:
        """The fence (C13.2-53): it stands before the contract, so that a split class is not reported as a mismatch."""
        bind = request.bind
        if bind is None:
            return
        if asked.route == "all" or request.op.command == DESCRIBE:
            raise _refused(Code.BAD_REQUEST, "bind stands on single requests alone, and not on describe")
        if asked.route == "inst" and bind.instance != self.instance:
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


def _check_target(asked: Request, request: EndpointRequest, contract: Contract) -> None:
    """Body target against the mode of the subject (C13.2-29, -39, C13.3-20..22)."""
    if asked.mode not in (contract.modes or (UNTARGETED,)):
        raise _refused(Code.TARGET_MISMATCH, "the command does not admit this authorization mode")
    target, named = request.target, asked.target
    if asked.mode in (UNTARGETED, "self"):
        if target is not None:
            raise _refused(Code.TARGET_MISMATCH, "this form has no body target")
        return
    if target is None:
        raise _refused(Code.TARGET_MISMATCH, "this form needs a body target")
    told = {"to_owner": target.owner, "to_actor": target.actor, "to_uid": target.lifecycle_uid}
    if any(told[name] != value for name, value in named.items()):
        raise _refused(Code.TARGET_MISMATCH, "the body target is not that of the subject")


def _refused(code: Code, message: str) -> Refusal:
    return Refusal(code, message, Outcome.NOT_EXECUTED)
