"""Documents of the messaging rail, whole and damaged, as a reader of JSON would build them."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

Document = dict[str, Any]
TEXT = st.sampled_from(["", "a", "text", "team.backend", "local.alice", "é😀"]) | st.text(max_size=4)
NUMBER = st.integers(-3, 2**60) | st.floats(allow_nan=False, allow_infinity=False)
_ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.0, 1.5, "", "x", "agent", "idle", "open", "quiet"),
    *([], ["a"], [1], {}, {"id": "x"}),
]
# Copies, because a document is changed in place.
ODD: st.SearchStrategy[Any] = st.sampled_from(_ODD).map(copy.deepcopy)
DIGEST = "sha256:" + "0a" * 32
KINDS = [
    "text",
    "data",
    "artifact",
    "image",
    "",
    "com.acme.x",
    "a.b\n",
    "a..b",
    ".a",
    "a.",
    "a_b.c",
    "TEXT",
    "x-1.y-2.z",
]
STRAY = st.dictionaries(st.sampled_from(["extra", "to", "channel", "toService", "kind", "url"]), ODD, max_size=2)

REF = st.fixed_dictionaries({"id": TEXT, "name": TEXT}, optional={"role": TEXT, "extra": ODD})
PART: st.SearchStrategy[Document] = st.one_of(
    st.fixed_dictionaries({"kind": st.just("text"), "text": TEXT}, optional={"extra": ODD}),
    st.fixed_dictionaries({"kind": st.just("data"), "data": ODD}),
    st.fixed_dictionaries(
        {
            "kind": st.just("artifact"),
            "name": TEXT,
            "mediaType": TEXT,
            "digest": st.sampled_from([DIGEST, DIGEST.upper(), DIGEST[:-1], DIGEST + "\n", "SHA256:" + "0" * 64]),
            "size": st.sampled_from([0, 1, 2**60, 1e15, 5.0, -0.0, 5.5, -1, -1.0, True]),
        },
    ),
    st.fixed_dictionaries({"kind": st.sampled_from(KINDS)}, optional={"text": ODD, "data": ODD, "member": ODD}),
)
MESSAGE = st.builds(
    lambda common, route, stray: {**stray, **common, **route},
    st.fixed_dictionaries(
        {"id": TEXT, "ts": NUMBER, "space": TEXT, "from": REF, "parts": st.lists(PART, max_size=3)},
        optional={"mentions": st.lists(TEXT, max_size=2), "replyTo": TEXT, "contextId": TEXT},
    ),
    st.sampled_from(["channel", "to", "toService"]).flatmap(lambda name: st.fixed_dictionaries({name: TEXT})),
    st.just({}) | st.just({}) | STRAY,
)
CARD = st.fixed_dictionaries(
    {"id": TEXT, "name": TEXT, "kind": st.sampled_from(["agent", "endpoint", "agent", "bot"])},
    optional={
        "owner": TEXT,
        "actor": TEXT,
        "role": TEXT,
        "description": TEXT,
        "tags": st.lists(TEXT, max_size=2),
        "skills": st.lists(
            st.fixed_dictionaries({"id": TEXT, "name": TEXT}, optional={"description": TEXT}), max_size=2
        ),
        "meta": st.dictionaries(TEXT, ODD, max_size=2),
        "protocolVersion": TEXT,
        "extra": ODD,
    },
)
PRESENCE = st.fixed_dictionaries(
    {"card": CARD, "status": st.sampled_from(["idle", "waiting", "working", "offline", "busy"]), "ts": NUMBER},
    optional={
        "condition": st.fixed_dictionaries(
            {"code": st.sampled_from(["rate_limit", "failed", "other"])},
            optional={"source": TEXT, "message": TEXT, "since": NUMBER},
        ),
        "environment": TEXT,
        "activity": TEXT,
        "statusSince": NUMBER,
        "activitySince": NUMBER,
        "activeAt": NUMBER,
        "attention": st.sampled_from(["open", "dnd", "focus", "away"]),
        "lifecycleUid": TEXT,
        "runtime": st.fixed_dictionaries({"id": TEXT, "startedAt": NUMBER, "source": TEXT}, optional={"pid": ODD}),
        "channelModes": st.dictionaries(TEXT, st.sampled_from(["quiet", "muted", "loud"]), max_size=2),
        "extra": ODD,
    },
)


@st.composite
def damaged(draw: st.DrawFn, documents: st.SearchStrategy[Document], most: int = 2) -> Any:
    """A document after up to ``most`` changes at any depth: a member removed, added, or of another type."""
    document: Any = copy.deepcopy(draw(documents))
    for _ in range(draw(st.integers(0, most))):
        holder: Any = document
        while True:
            names = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not names:
                break
            name = draw(st.sampled_from(names))
            inner = holder[name]
            if isinstance(inner, dict | list) and draw(st.booleans()):
                holder = inner
                continue
            if isinstance(holder, dict) and draw(st.booleans()):
                del holder[name]
            else:
                holder[name] = draw(ODD)
            break
    return draw(ODD) if draw(st.integers(0, 30)) == 0 else document
