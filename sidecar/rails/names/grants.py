"""Permission subjects: exact rows for user JWTs, and the pattern arithmetic that audits them.

Rows come from ``Template.filter`` and ``Template.subtree``; this module adds what a permission list needs beyond one
row. Patterns are compared as the broker compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sidecar.rails.names import api, inboxes, subjects
from sidecar.rails.names.errors import InvalidName, excerpt
from sidecar.rails.names.limits import MAX_SUBJECT
from sidecar.rails.names.template import Template
from sidecar.rails.names.tokens import TAIL, WILDCARD

LISTING_DOMAIN = "cotal.listing.v1"
"""Begins the preimage of a listing token (C13.15-30)."""

_ROW = re.compile(r"(?:(?:[^.\s*>]+|\*)\.)*(?:[^.\s*>]+|\*|>)")
_QUEUE = re.compile(r"[^\s*>]+")
_ROOT = f"{subjects.SPACE.parts[0].literals[0]}."
_ROOTS = (_ROOT, *api.RESERVED_ROOTS, api.INBOX_ROOT)
_GENERIC = (_ROOT, *api.RESERVED_ROOTS, api.INFO.text.removesuffix("INFO"))
_SHARED_INBOX = inboxes.SYSTEM.subtree()


def check_row(row: object) -> str:
    """A permission row: one subject pattern below a root that we know, wildcards as whole tokens, ``>`` last, and at
    most one queue group after a space. InvalidName otherwise, also for a wildcard directly below a root (C13.9-041);
    the shared inbox of the system account is the one exception (CB-118)."""
    if not isinstance(row, str) or len(row) > MAX_SUBJECT:
        raise InvalidName("grant", f"{excerpt(row)} is no permission row", "C9")
    subject, separator, queue = row.partition(" ")
    if _ROW.fullmatch(subject) is None or (separator and _QUEUE.fullmatch(queue) is None):
        raise InvalidName("grant", f"{excerpt(row)} is no permission row", "C9")
    if not subject.startswith(_ROOTS):
        raise InvalidName("grant", f"{excerpt(row)} names no family that we know", "C13.9-041")
    if subject != _SHARED_INBOX and subject.startswith(
        tuple(root + one for root in _GENERIC for one in (WILDCARD, TAIL))
    ):
        raise InvalidName("grant", f"{excerpt(row)} is wider than one family", "C13.9-041")
    return row


def covers(outer: str, inner: str) -> bool:
    """Whether every subject of the pattern ``inner`` is one of ``outer``. True containment: unlike the broker's check
    of a subscription, a ``>`` of ``inner`` is not taken for one token."""
    wide, narrow = outer.split("."), inner.split(".")
    for at, token in enumerate(wide):
        if token == TAIL:
            return len(narrow) > at
        if at >= len(narrow) or narrow[at] == TAIL:
            return False
        if token not in (WILDCARD, narrow[at]):
            return False
    return len(narrow) == len(wide)


def overlaps(one: str, other: str) -> bool:
    """Whether some subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if TAIL in (a, b):
            return True
        if a != b and WILDCARD not in (a, b):
            return False
    return len(left) == len(right)


def admitted(row: str, subscription: str) -> bool:
    """Whether the broker admits a subscription under an allow row: token by token, so that a ``>`` of the subscription
    passes for a ``*`` of the row. ``subscribe_denies`` closes that. Published subjects are admitted the same way, and
    there no deny helps: a row that pins a consumer's filter must not end in ``*`` (C8-28)."""
    allow, asked = row.split(" ")[0].split("."), subscription.split(".")
    for at, token in enumerate(allow):
        if token == TAIL:
            return len(asked) > at
        if at >= len(asked) or token not in (WILDCARD, asked[at]):
            return False
    return len(asked) == len(allow)


def subscribe_denies(allow: Iterable[str]) -> list[str]:
    """The deny rows that a list of subscribe rows needs: ``<row>.>`` for each that ends in ``*``.

    Without it a subscription to ``x.>`` is accepted under ``x.*`` and reads ``x.a.b``. A row whose whole subtree is
    allowed anyway needs none. InvalidName if a deny would take away something that another row allows: such a list
    cannot be expressed, so it is refused and not narrowed in silence.
    """
    rows = [check_row(row).split(" ")[0] for row in allow]
    denies = []
    for row in dict.fromkeys(rows):
        deny = f"{row}.{TAIL}"
        if not row.endswith(f".{WILDCARD}") or any(covers(other, deny) for other in rows):
            continue
        taken = [other for other in rows if overlaps(deny, other)]
        if taken:
            raise InvalidName("grant", f"{excerpt(row)} and {excerpt(taken[0])} cannot be granted together", "C3-12")
        denies.append(deny)
    return denies


def create_denies(stream: str) -> list[str]:
    """The publish denies that keep a holder from creating any consumer on a stream (CB-44..52)."""
    forms: tuple[Template, ...] = (api.CONSUMER_CREATE_NAMED, api.DURABLE_CREATE)
    return [api.CONSUMER_CREATE.build(stream=stream), *(form.subtree(stream=stream) for form in forms)]
