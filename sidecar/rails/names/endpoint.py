"""Request and reply subjects of the endpoint rails (13.2).

Every form is the product of one head (routing mode), one target block (authorization mode) and one tail (rail), so the
table is multiplied out, not written out. The parser looks at the token after the command, never at the token count.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.rails.names.errors import InvalidName, excerpt
from sidecar.rails.names.limits import MAX_RAIL_SUBJECT
from sidecar.rails.names.template import Kind, Template
from sidecar.rails.names.tokens import MODES

UNTARGETED = ""
"""In place of an authorization mode: the command has no target."""

_HEADS = {
    "one": "one.<endpoint>.<command>",
    "all": "all.<endpoint>.<command>",
    "inst": "inst.<endpoint>.<instance>.<command>",
}
_ONE_TOKEN = "<to_owner:owner>."  # noqa: S105 - a token of a subject
_THREE_TOKENS = "<to_owner:owner>.<to_actor:actor>.<to_uid:uid>."
_TARGETS = {
    UNTARGETED: "",
    "self": "self.",
    **{mode: f"{mode}.{_ONE_TOKEN}" for mode in ("owner", "any", "child", "ledger")},
    **{mode: f"{mode}.{_THREE_TOKENS}" for mode in ("handle", "exact")},
}
_CALLER = "<owner:caller_owner>.<actor>.<uid>"
_RAILS = {False: ("cotal.<space>.ep.", ""), True: ("cotal.<space>.ep.v1.", ".<generation>")}
ROUTES = tuple(_HEADS)
_USES = {"one": "one instance, by queue group", "all": "every instance", "inst": "one named instance"}


def _request(route: str, mode: str, issued: bool) -> Template:
    root, generation = _RAILS[issued]
    text = f"{root}{_HEADS[route]}.{_TARGETS[mode]}{_CALLER}{generation}.<nonce>"
    name = f"{'issued ' if issued else ''}request {route} {mode or 'untargeted'}"
    return Template(Kind.SUBJECT, name, text, "C13.2-20", _USES[route], longest=MAX_RAIL_SUBJECT)


def _reply(issued: bool) -> Template:
    root, generation = _RAILS[issued]
    text = f"{root}reply.<endpoint>.<instance>.<epoch:number>.{_CALLER}{generation}.<nonce>"
    name = "issued reply" if issued else "reply"
    return Template(Kind.SUBJECT, name, text, "C13.2-45", "derived from the request, never asked for", MAX_RAIL_SUBJECT)


def _sentinel(issued: bool) -> Template:
    root, generation = _RAILS[issued]
    text = f"{root}reply._nr._nr._nr.{_CALLER}{generation}.<nonce>"
    name = "issued no responders" if issued else "no responders"
    return Template(
        Kind.SUBJECT, name, text, "C13.3-49", "reply-to of a request; the broker alone answers there", MAX_RAIL_SUBJECT
    )


REQUESTS = {
    (route, mode, issued): _request(route, mode, issued) for issued in _RAILS for route in _HEADS for mode in _TARGETS
}
"""(routing mode, authorization mode or UNTARGETED, issued caller) -> template."""
REPLIES = {issued: _reply(issued) for issued in _RAILS}
SENTINELS = {issued: _sentinel(issued) for issued in _RAILS}
"""Where the broker says that nobody serves a request; ``_nr`` is no endpoint token, so no serve grant reaches it."""
SUBMISSIONS = {
    mode: Template(
        Kind.SUBJECT,
        f"submission {mode or 'untargeted'}",
        f"cotal.<space>.epj.<endpoint>.<command>.{_TARGETS[mode]}{_CALLER}",
        "C13.2-60",
        "journal command; never a Nats-Msg-Id",
        longest=MAX_RAIL_SUBJECT,
    )
    for mode in _TARGETS
}
ENDPOINT_RAIL = Template(Kind.SUBJECT, "endpoint rail", "cotal.<space>.ep", "13.2", "everything below, for audits")

TEMPLATES = (ENDPOINT_RAIL, *REQUESTS.values(), *REPLIES.values(), *SENTINELS.values(), *SUBMISSIONS.values())


@dataclass(frozen=True, slots=True)
class Request:
    """A request subject taken apart. ``target`` holds ``to_owner`` (and ``to_actor``, ``to_uid``) of its mode."""

    route: str
    mode: str
    issued: bool
    values: dict[str, str]

    @property
    def sender(self) -> str:
        """The caller's principal in dot-form."""
        return f"{self.values['owner']}.{self.values['actor']}"

    @property
    def target(self) -> dict[str, str]:
        return {name: value for name, value in self.values.items() if name.startswith("to_")}

    def reply(self, instance: str, epoch: int) -> str:
        """The one subject on which this request may be answered, on the rail that it came in on (C13.2-28, -45)."""
        caller = {name: self.values[name] for name in ("space", "endpoint", "owner", "actor", "uid", "nonce")}
        if self.issued:
            caller["generation"] = self.values["generation"]
        return REPLIES[self.issued].build(instance=instance, epoch=epoch, **caller)


def parse_request(subject: str) -> Request:
    """The request that a subject is; InvalidName if it fits no form, has the wrong arity or a bad token (C13.2-21)."""
    if len(subject) > MAX_RAIL_SUBJECT:
        raise InvalidName("request subject", f"{len(subject)} characters", "C13.2-10")
    tokens = subject.split(".")
    issued = tokens[3:4] == ["v1"]
    at = 4 if issued else 3
    route = tokens[at] if len(tokens) > at else ""
    if route not in _HEADS:
        raise InvalidName("request subject", f"{excerpt(subject)} has another form", "C13.2-22")
    after = at + _HEADS[route].count(".") + 1
    mode = tokens[after] if len(tokens) > after and tokens[after] in MODES else UNTARGETED
    return Request(route, mode, issued, REQUESTS[route, mode, issued].parse(subject))


def parse_submission(subject: str) -> Request:
    """The journal submission that a subject is (C13.2-60); InvalidName as for ``parse_request``."""
    tokens = subject.split(".") if len(subject) <= MAX_RAIL_SUBJECT else []
    mode = tokens[5] if len(tokens) > 5 and tokens[5] in MODES else UNTARGETED
    return Request("epj", mode, False, SUBMISSIONS[mode].parse(subject))
