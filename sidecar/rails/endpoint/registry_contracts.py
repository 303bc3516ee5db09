"""The commands of the registry endpoint: the question of C13.20, and what discovery and callers read of the records.

All are untargeted, ephemeral reads. What they give is bounded by the message that it has to fit into; the shapes bound
the number of entries.
"""

from __future__ import annotations

from typing import Any, Final

from sidecar.rails.endpoint.clusters import CLASSES, MAX_CLUSTERS, MAX_COMMANDS, READ
from sidecar.rails.endpoint.contract import Compiled, Contract, Contracts, contracts, joined, surface_of
from sidecar.rails.endpoint.shapes import TRUE, array, closed, mapping, nullable, spelled, text, whole
from sidecar.rails.envelopes.shapes import ANYTHING, Shape, matching, words
from sidecar.rails.names.limits import MAX_TOKEN
from sidecar.rails.names.tokens import ENDPOINT_NAME, MODES

REGISTRY_ENDPOINT: Final = "registry"
LISTING_CLUSTER: Final = "ai.cotal.registry"
RECORDS_CLUSTER: Final = "dev.sidecar.registry"
PROTOCOL: Final = 1

MAX_ROWS: Final = 100
"""Rows of one page of ``endpoints``, and its default (C13.20-03)."""
MAX_INSTANCES: Final = 1_024
"""Instances in one row or page."""
MAX_DIGESTS: Final = 64
"""Artifacts asked for at once: those of a largest closure."""
MAX_EVENTS: Final = 64
MAX_WAIT_MS: Final = 25_000
"""Longest wait of ``record`` for a change."""
MAX_TOPIC: Final = 512
"""Characters of a topic, the bound of its tokens in subjects."""
MAX_COMBINATIONS: Final = 4_096
"""Combinations of one form that are listed (C13.20-08)."""
MAX_LITERALS: Final = 4_096
MAX_DECLARED: Final = MAX_CLUSTERS * MAX_COMMANDS
RAILS: Final = ("ep", "ep.v1", "epj")
POSITIONS: Final = ("instanceId", "targetOwner", "targetActor", "targetUid", "nonce")

_ENDPOINT = spelled(rf"^{ENDPOINT_NAME.shape}$", MAX_TOKEN, "is no endpoint name")
_COMMAND = matching(r"^[a-z0-9-]{1,32}$", "is no command name")
_UID = matching(r"^[a-z0-9]{26,32}$", "is no lifecycle uid or instance id")
_DIGEST = matching(r"^sha256:[0-9a-f]{64}$", "is no digest")
_TOPIC = spelled(r"^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*$", MAX_TOPIC, "is no topic")
_TOKEN = text(MAX_TOKEN, 1)
_STATE = matching(r"^[a-z][a-z0-9-]{0,31}$", "is no state")
_NUMBER = whole()
_INSTANCES = array(_UID, MAX_INSTANCES)
_REVISED = closed({"revision": _NUMBER, "value": ANYTHING})


def _named(shape: Shape) -> Shape:
    """Something at each position that a form has."""
    return closed({}, dict.fromkeys(POSITIONS, shape))


_FORM = closed(
    {
        "rail": words(*RAILS),
        "literals": _named(array(_TOKEN, MAX_LITERALS)),
        "covered": array(_named(nullable(_TOKEN)), MAX_COMBINATIONS),
    },
    {"route": words("one", "all", "inst"), "mode": words(*MODES)},
)
"""``covered`` has a combination for each entry: at each position a token, null for any that ``literals`` do not name,
or ``"*"`` for every one (C13.20-07)."""
_ROW = closed(
    {
        "endpoint": _ENDPOINT,
        "instances": array(
            closed(
                {
                    "instanceId": _UID,
                    "state": nullable(_STATE),
                    "artifacts": words("verified", "missing", "invalid"),
                }
            ),
            MAX_INSTANCES,
        ),
        "commands": array(
            closed({"name": _COMMAND, "class": words(*CLASSES), "forms": array(_FORM, 64)}, {"instances": _INSTANCES}),
            MAX_DECLARED,
        ),
    },
    {"unprojected": array(_COMMAND, MAX_DECLARED)},
)


def _read(command: str, takes: Shape, gives: Shape, **more: Any) -> Contract:
    return Contract(command, takes, gives, effect=READ, **more)


LISTING: Final = contracts(
    _read(
        "endpoints",
        closed({}, {"limit": whole(1, MAX_ROWS), "after": _ENDPOINT}),
        closed(
            {"rows": array(_ROW, MAX_ROWS), "source": words("recorded-ceiling", "no-permission-system")},
            {"next": _ENDPOINT},
        ),
    )
)
RECORDS: Final = contracts(
    _read(
        "instances",
        closed({"endpoint": _ENDPOINT}, {"after": _UID}),
        closed(
            {
                "rows": array(
                    closed(
                        {
                            "instanceId": _UID,
                            "owner": _TOKEN,
                            "registrationRevision": _NUMBER,
                            "epoch": _NUMBER,
                            "state": nullable(_STATE),
                            "clusterDigests": array(_DIGEST, MAX_CLUSTERS),
                            "protocol": _NUMBER,
                        }
                    ),
                    MAX_INSTANCES,
                )
            },
            {"next": _UID},
        ),
    ),
    _read(
        "artifacts",
        closed({"digests": array(_DIGEST, MAX_DIGESTS, 1)}),
        closed({"documents": array(closed({"digest": _DIGEST, "document": ANYTHING}), MAX_DIGESTS)}, {"more": TRUE}),
    ),
    _read(
        "record",
        closed(
            {"endpoint": _ENDPOINT, "instanceId": _UID},
            {"after": closed({}, {"spec": _NUMBER, "status": _NUMBER}), "waitMs": whole(0, MAX_WAIT_MS)},
        ),
        closed({}, {"spec": _REVISED, "status": _REVISED, "observed": ANYTHING}),
        waits=True,
    ),
    _read(
        "events",
        closed(
            {"endpoint": _ENDPOINT, "topic": _TOPIC}, {"after": _NUMBER, "limit": whole(1, MAX_EVENTS), "tail": TRUE}
        ),
        closed(
            {
                "events": array(
                    closed(
                        {
                            "sequence": _NUMBER,
                            "instanceId": _UID,
                            "epoch": _NUMBER,
                            "topic": _TOPIC,
                            "event": mapping(64),
                        }
                    ),
                    MAX_EVENTS,
                )
            },
            {"next": _NUMBER, "oldest": _NUMBER},
        ),
    ),
    _read(
        "target",
        closed({"owner": _TOKEN, "actor": _TOKEN}),
        closed({}, {"lifecycleUid": _UID, "mappingRevision": _NUMBER}),
    ),
    _read(
        "caller-view",
        closed(
            {"endpoint": _ENDPOINT, "owner": _TOKEN, "actor": _TOKEN, "uid": _UID},
            {"generation": matching(r"^[0-9a-f]{32}$", "is no generation")},
        ),
        closed({"commands": array(_COMMAND, MAX_DECLARED), "asOfMs": _NUMBER}),
    ),
)
REGISTRY: Final[Contracts] = {**LISTING, **RECORDS}
"""All commands of the registry endpoint."""


def registry_surface() -> Compiled:
    """What the registry registers and describes; its description is public (C13.20-02)."""
    return joined(
        surface_of(LISTING_CLUSTER, LISTING, endpoint=REGISTRY_ENDPOINT, protocol=PROTOCOL),
        surface_of(RECORDS_CLUSTER, RECORDS, endpoint=REGISTRY_ENDPOINT, protocol=PROTOCOL),
    )
