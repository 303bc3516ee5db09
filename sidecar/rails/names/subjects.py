"""Subjects of the messaging contract (C3): templates, and the one parser of deliveries.

A delivery is a ``chat``, ``inst`` or ``svc`` subject and nothing else (C3-22). ``delivery_of`` only splits; content
is shown only when ``Delivery.surfaces`` holds too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from sidecar.rails.names.limits import MAX_SUBJECT
from sidecar.rails.names.principals import surfaces
from sidecar.rails.names.template import Kind, Template, listed
from sidecar.rails.names.tokens import TAIL, WILDCARD

CHAT = Template(
    Kind.SUBJECT, "multicast", "cotal.<space>.chat.<owner>.<actor>.<channel...>", "C3-04", "post on a channel"
)
INST = Template(
    Kind.SUBJECT,
    "unicast",
    "cotal.<space>.inst.<to_owner:owner>.<to_actor:actor>.<owner>.<actor>",
    "C3-04",
    "direct message: recipient, then sender",
)
SVC = Template(Kind.SUBJECT, "anycast", "cotal.<space>.svc.<role>.<owner>.<actor>", "C3-04", "work for one of a role")
TAKE = Template(
    Kind.SUBJECT, "anycast take", "cotal.<space>.take.<role>.<owner>.<actor>", "C8.1-57", "a holder records its take"
)
TAKE_REPLY = Template(
    Kind.SUBJECT,
    "anycast take reply",
    "cotal.<space>.take.<role>.<owner>.<actor>.reply.<nonce:id>",
    "C8.1-57",
    "answer to a take",
)
LIVE = Template(
    Kind.SUBJECT, "liveness request", "cotal.<space>.live.<plane>.<owner>.<actor>", "C6.1-03", "empty body; no delivery"
)
LIVE_REPLY = Template(
    Kind.SUBJECT,
    "liveness reply",
    "cotal.<space>.live.<plane>.<owner>.<actor>.reply.<nonce:id>",
    "C6.1-06",
    "below the caller's own request",
)
DINBOX = Template(
    Kind.SUBJECT,
    "durable inbox",
    "cotal.<space>.dinbox.<owner>.<actor>.<uid>",
    "C8-40",
    "copies before re-authorization",
)
DLV = Template(
    Kind.SUBJECT, "durable handoff", "cotal.<space>.dlv.<owner>.<actor>.<uid>", "C8-43", "copies for one lifecycle"
)
TRACE = Template(Kind.SUBJECT, "trace", "cotal.<space>.trace.<instance:word>", "C3-21", "reserved; never published")
SPACE = Template(Kind.SUBJECT, "space", "cotal.<space>", "C3-01", "root of every application subject")
LIVE_QUEUE = Template(Kind.QUEUE, "liveness queue", "live.<plane>", "C6.1-13", "queue group of a plane's responders")

TEMPLATES = listed(globals())

DELIVERY_KINDS = {"chat": "channel", "inst": "dm", "svc": "anycast"}
"""Kind token of the subject -> kind that the receiver is shown (C4-05)."""


class Delivery(NamedTuple):
    """A delivery subject taken apart. ``rest`` is the channel, the recipient in dot-form, or the role."""

    kind: str
    space: str
    owner: str
    actor: str
    rest: str

    @property
    def sender(self) -> str:
        """Dot-form, the string that ``from.id`` must equal (C3-06)."""
        return f"{self.owner}.{self.actor}"

    @property
    def shown(self) -> str:
        """``channel``, ``dm`` or ``anycast``, from the subject and never from the payload (C4-05)."""
        return DELIVERY_KINDS[self.kind]

    @property
    def surfaces(self) -> bool:
        """Whether the sender's owner is one whose content may be shown (C3-09)."""
        return surfaces(self.owner)

    @property
    def concrete(self) -> bool:
        """Whether it was published to one channel, recipient or role. The broker takes a literal ``*`` or ``>`` in a
        published subject; no conformant publisher sends one (C3-13, C3-17)."""
        return not {WILDCARD, TAIL} & set(self.rest.split("."))


@dataclass(frozen=True, slots=True)
class _Layout:
    """Token positions of a delivery kind, read from its template."""

    tokens: int
    open_end: bool
    owner: int
    rest: slice


def _layout(template: Template) -> _Layout:
    names = [part.fields[0].name if part.fields else "" for part in template.parts]
    others = [at for at, name in enumerate(names) if name not in ("", "space", "owner", "actor")]
    open_end = template.parts[-1].fields[0].tail
    return _Layout(len(names), open_end, names.index("owner"), slice(others[0], None if open_end else others[-1] + 1))


_LAYOUTS = {template.parts[2].literals[0]: _layout(template) for template in (CHAT, INST, SVC)}
_ROOT = SPACE.parts[0].literals[0]


def delivery_of(subject: str) -> Delivery | None:
    """The delivery that a subject carries, by root, kind and arity alone (C3-07, C12-16); None for any other subject,
    also for the liveness, take, endpoint, retired control and trace families (C3-22)."""
    if len(subject) > MAX_SUBJECT:
        return None
    return _delivery_of(subject)


@lru_cache(maxsize=1024)
def _delivery_of(subject: str) -> Delivery | None:
    """A reader hears the same few subjects, again and again."""
    tokens = subject.split(".")
    if len(tokens) < 3 or tokens[0] != _ROOT or "" in tokens:
        return None
    layout = _LAYOUTS.get(tokens[2])
    if layout is None or len(tokens) < layout.tokens or (len(tokens) > layout.tokens and not layout.open_end):
        return None
    at = layout.owner
    return Delivery(tokens[2], tokens[1], tokens[at], tokens[at + 1], ".".join(tokens[layout.rest]))
