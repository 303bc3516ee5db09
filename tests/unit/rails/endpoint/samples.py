"""One right request and one instance that serves it, for tests that change a single thing."""

from __future__ import annotations

import json
from typing import Any

from sidecar.rails.endpoint.contracts import DELIVERY, DELIVERY_ENDPOINT, JOURNAL, Contract, contracts
from sidecar.rails.endpoint.judge import Serving, Verdict
from sidecar.rails.endpoint.shapes import VOID
from sidecar.rails.names import endpoint
from sidecar.rails.names.endpoint import UNTARGETED

UID = "a1" * 13
BOB_UID = "b2" * 13
INSTANCE = "i2" * 13
OTHER = "e5" * 13
NONCE = "n" * 32
GENERATION = "0" * 32
CALLER = {"space": "main", "owner": "local", "actor": "alice", "uid": UID, "nonce": NONCE}
TARGET = {"owner": "local", "actor": "bob", "lifecycleUid": BOB_UID}
STOP = Contract("stop", VOID, VOID, modes=("self", "owner", "handle"))
START = Contract("start", VOID, VOID, contract_class=JOURNAL, action=True)
SERVING = Serving("main", DELIVERY_ENDPOINT, INSTANCE, 3, {**DELIVERY, **contracts(STOP, START)})


def subject(
    command: str = "durable-join", route: str = "one", mode: str = UNTARGETED, issued: bool = False, **more: Any
) -> str:
    """The request subject of alice."""
    names: dict[str, Any] = {**CALLER, "endpoint": DELIVERY_ENDPOINT, "command": command}
    names |= {"generation": GENERATION} if issued else {}
    names |= {"instance": INSTANCE} if route == "inst" else {}
    named = {"to_owner": "local", "to_actor": "bob", "to_uid": BOB_UID}
    template = endpoint.REQUESTS[route, mode, issued]
    names |= {name: value for name, value in named.items() if name in template.fields}
    return template.build(**{**names, **more})


def body(command: str = "durable-join", without: str = "", **changes: Any) -> dict[str, Any]:
    """The body of a request that is right, changed."""
    contract = SERVING.contracts[command]
    whole: dict[str, Any] = {
        "v": 1,
        "id": "r1",
        "op": {
            "endpoint": DELIVERY_ENDPOINT,
            "command": command,
            "inputDigest": contract.input_digest,
            "outputDigest": contract.output_digest,
        },
        "class": contract.contract_class,
        "replyExpected": True,
        "from": {"id": "local.alice", "name": "alice"},
        "deadlineMs": 5000,
    }
    if contract.input is not VOID:
        whole["args"] = {"channel": "general", "joinCursor": 7}
    if contract.action:
        whole["goalId"] = "g1"
    whole |= changes
    whole.pop(without, None)
    return whole


def op(**changes: Any) -> dict[str, Any]:
    """The op of durable-join, changed."""
    found: dict[str, Any] = {**body()["op"], **changes}
    return found


def judged(value: Any, at: str | None = None, names: tuple[str, ...] = ()) -> Verdict:
    """The verdict about a body, given as bytes or as a value."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return SERVING.judge(subject() if at is None else at, names, data)
