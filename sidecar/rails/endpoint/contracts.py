"""The contracts that are compiled in: those of the delivery endpoint, and with them those of the registry (13.7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.rails.endpoint.artifacts import digest as digest
from sidecar.rails.endpoint.clusters import CLASSES as CLASSES
from sidecar.rails.endpoint.clusters import DESCRIBE as DESCRIBE
from sidecar.rails.endpoint.clusters import EPHEMERAL as EPHEMERAL
from sidecar.rails.endpoint.clusters import JOURNAL as JOURNAL
from sidecar.rails.endpoint.clusters import READ
from sidecar.rails.endpoint.clusters import RESERVED as RESERVED
from sidecar.rails.endpoint.contract import Compiled as Compiled
from sidecar.rails.endpoint.contract import Contract as Contract
from sidecar.rails.endpoint.contract import Contracts as Contracts
from sidecar.rails.endpoint.contract import closure_digest as closure_digest
from sidecar.rails.endpoint.contract import contracts as contracts
from sidecar.rails.endpoint.contract import default_capability as default_capability
from sidecar.rails.endpoint.contract import document as document
from sidecar.rails.endpoint.contract import joined as joined
from sidecar.rails.endpoint.contract import surface_of as surface_of
from sidecar.rails.endpoint.registry_contracts import REGISTRY, REGISTRY_ENDPOINT
from sidecar.rails.endpoint.shapes import (
    BOOLEAN,
    TRUE,
    VOID,
    array,
    by_word,
    closed,
    mapping,
    nullable,
    text,
    texts,
    whole,
)
from sidecar.rails.envelopes.shapes import constant, matching, words
from sidecar.rails.names.limits import MAX_CHANNEL, MAX_DISPLAY_NAME, MAX_KEY, MAX_SUBJECT

MAX_BATCH: Final = 64
"""Frames in one answer to ``fetch``."""
MAX_WAIT_MS: Final = 25_000
"""Longest wait of ``fetch`` for a first frame."""
MAX_SETTLED: Final = 256
MAX_HISTORY: Final = 256
MAX_MEMBERSHIPS: Final = 4_096
MAX_PAGE: Final = 512
"""Entries in one page of the registry or roster; a page may end earlier, to fit into a message."""
MAX_DELAY_MS: Final = 600_000
_MAX_DATA: Final = 4 * (1 << 20) // 3 + 4
"""Characters of a payload in base64."""

_CHANNEL = text(MAX_CHANNEL, 1)
_SEQUENCE = whole()
_REF = closed({"id": text(129, 3), "name": text(MAX_DISPLAY_NAME)})
_SOURCE = words("dm", "backstop", "role")
_ROLE = text(64, 1)
_KEY = text(MAX_KEY, 1)
_TOKEN = matching(r"^[0-9.]{1,128}$", "is no ack token")
_SESSION = matching(r"^[0-9a-f]{32}$", "is no session")
"""A process that reads, as it names itself: what an older one of the same member held is given back to a newer one."""

FRAME: Final = closed(
    {
        "subject": text(MAX_SUBJECT, 1),
        "data": matching(r"^[A-Za-z0-9+/]*={0,2}$", "is no base64"),
        "headers": texts(64, 8_192),
        "sequence": _SEQUENCE,
        "delivered": _SEQUENCE,
        "pending": _SEQUENCE,
        "timeMs": _SEQUENCE,
    },
    {"token": _TOKEN, "omitted": whole(1)},
)
"""A stored message, read for a member. ``data`` is base64; ``omitted`` is the size in bytes of a payload that does not
fit into an answer: then ``data`` is empty, and the frame can still be settled."""

_FRAMES = array(FRAME, MAX_BATCH)
_MEMBERSHIP = closed({"channel": _CHANNEL, "generation": _SEQUENCE, "activated": BOOLEAN})
_MEMBER_ROW = closed(
    {"channel": _CHANNEL, "generation": _SEQUENCE},
    {
        "activated": BOOLEAN,
        "state": words("live-confirmed", "durable-active"),
        "joinCursor": _SEQUENCE,
        "leaveCursor": _SEQUENCE,
    },
)
_REQUEST = closed({"seq": whole(1)}, {"id": text(1_024)})
_ANYCAST = by_word(
    "state",
    {
        "waiting": closed({"state": constant("waiting"), "seq": whole(1), "role": _ROLE}),
        "taken": closed(
            {"state": constant("taken"), "seq": whole(1), "role": _ROLE, "taker": _REF, "at": _SEQUENCE},
            {"previous": _REF},
        ),
        "cancelled": closed(
            {
                "state": constant("cancelled"),
                "seq": whole(1),
                "role": _ROLE,
                "removal": words("pending", "deleted", "already-gone"),
            }
        ),
        "unknown": closed({"state": constant("unknown"), "seq": whole(1)}),
    },
)
"""What became of a request for a role (C8.1-36)."""


DELIVERY: Final = contracts(
    Contract(
        "durable-join",
        closed({"channel": _CHANNEL, "joinCursor": _SEQUENCE}),
        closed({"durable": BOOLEAN}, {"reason": text(256), "generation": _SEQUENCE}),
    ),
    Contract(
        "durable-leave",
        closed({"channel": _CHANNEL, "generation": _SEQUENCE}),
        closed({"channel": _CHANNEL}, {"alreadyLeft": BOOLEAN}),
    ),
    Contract("list-memberships", VOID, closed({"memberships": array(_MEMBERSHIP, MAX_MEMBERSHIPS)}), effect=READ),
    Contract(
        "lifecycle-memberships",
        closed({"lifecycle": text(194, 1)}),
        closed({"memberships": array(_MEMBER_ROW, MAX_MEMBERSHIPS)}),
        effect=READ,
    ),
    Contract("anycast-status", _REQUEST, _ANYCAST, effect=READ),
    Contract("anycast-cancel", _REQUEST, _ANYCAST),
    Contract("anycast-takes", VOID, closed({"takes": TRUE}), effect=READ),
    Contract(
        "fetch",
        closed(
            {"source": _SOURCE, "batch": whole(1, MAX_BATCH), "waitMs": whole(0, MAX_WAIT_MS)},
            {"role": _ROLE, "session": _SESSION},
        ),
        closed({"frames": _FRAMES}),
        waits=True,
    ),
    Contract(
        "settle",
        closed(
            {
                "source": _SOURCE,
                "items": array(
                    closed(
                        {"token": _TOKEN, "how": words("ack", "nak", "term", "renew", "hold")},
                        {"delayMs": whole(0, MAX_DELAY_MS)},
                    ),
                    MAX_SETTLED,
                ),
            },
            {"role": _ROLE, "session": _SESSION, "end": TRUE},
        ),
        closed({"settled": array(BOOLEAN, MAX_SETTLED)}),
    ),
    Contract(
        "read-history",
        closed(
            {"channel": _CHANNEL, "limit": whole(0, MAX_HISTORY)},
            {"after": _SEQUENCE, "upTo": _SEQUENCE, "sinceMs": _SEQUENCE},
        ),
        closed({"frames": array(FRAME, MAX_HISTORY), "frontier": _SEQUENCE, "complete": BOOLEAN}),
        effect=READ,
    ),
    Contract(
        "read-registry",
        closed({}, {"after": _KEY}),
        closed(
            {
                "defaults": nullable(mapping(64)),
                "channels": array(closed({"channel": _CHANNEL, "config": mapping(64)}), MAX_PAGE),
            },
            {"next": _KEY},
        ),
        effect=READ,
    ),
    Contract(
        "read-roster",
        closed({}, {"after": _KEY}),
        closed(
            {
                "entries": array(
                    closed({"key": _KEY, "value": text(_MAX_DATA), "revision": _SEQUENCE, "timeMs": _SEQUENCE}),
                    MAX_PAGE,
                )
            },
            {"next": _KEY},
        ),
        effect=READ,
    ),
    Contract("task-epoch", VOID, closed({"epoch": text(64, 1)}), effect=READ),
    Contract("lease-holder", VOID, closed({}, {"holder": text(129, 3)}), effect=READ),
)
"""The commands of the delivery endpoint (OPEN C7-a, C8.1-34, C9-47)."""
DELIVERY_ENDPOINT: Final = "delivery"
DELIVERY_CLUSTER: Final = "ai.cotal.delivery"
KNOWN: Final[Mapping[str, Contracts]] = {DELIVERY_ENDPOINT: DELIVERY, REGISTRY_ENDPOINT: REGISTRY}
"""Contracts that are compiled in, by endpoint name. Their effects are our own word for callers (C13.7-11)."""


def delivery_surface() -> Compiled:
    """What the delivery endpoint registers and describes."""
    return surface_of(DELIVERY_CLUSTER, DELIVERY, endpoint=DELIVERY_ENDPOINT)
