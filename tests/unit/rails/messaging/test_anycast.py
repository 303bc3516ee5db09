"""The sender's side: the id always goes along, and an open mesh is told of before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.base.strictjson import JsonValue
from sidecar.rails.envelopes.message import EndpointRef
from sidecar.rails.messaging.anycast import AnycastRequests, BadStatus, OpenMesh, Removal, State, Status, read_status

REF = {"id": "local.rev", "name": "Rev"}
TAKEN: dict[str, Any] = {"state": "taken", "seq": 17, "role": "r", "taker": REF, "at": 5}


class Endpoint:
    def __init__(self, answer: JsonValue) -> None:
        self.answer, self.asked = answer, list[tuple[str, str, Any]]()

    async def call(
        self, endpoint: str, command: str, args: dict[str, JsonValue] | None = None, *, seconds: float = 5.0
    ) -> JsonValue:
        self.asked.append((endpoint, command, args))
        return self.answer


@pytest.mark.req("C8.1-36", "C8.1-37", "C8.1-39")
@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"state": "waiting", "seq": 17, "role": "r"}, Status(State.WAITING, 17, "r")),
        (TAKEN, Status(State.TAKEN, 17, "r", EndpointRef("local.rev", "Rev"), None, 5)),
        (
            {**TAKEN, "previous": {"id": "local.o", "name": "O"}},
            Status(State.TAKEN, 17, "r", EndpointRef("local.rev", "Rev"), EndpointRef("local.o", "O"), 5),
        ),
        *(
            ({"state": "cancelled", "seq": 17, "role": "r", "removal": one.value},
             Status(State.CANCELLED, 17, "r", removal=one))
            for one in Removal
        ),
        ({"state": "unknown", "seq": 17}, Status(State.UNKNOWN, 17)),
    ],
)  # fmt: skip
def test_the_four_states(answer: JsonValue, status: Status) -> None:
    assert read_status(answer) == status


@pytest.mark.parametrize(
    "answer",
    [
        None, [], {}, {"state": "lost", "seq": 1}, {"state": "unknown"}, {"state": "unknown", "seq": 0},
        {"state": "unknown", "seq": 1, "role": "r"}, {"state": "waiting", "seq": 1}, {**TAKEN, "taker": None},
        {**TAKEN, "at": "x"}, {**TAKEN, "taker": {"id": 1, "name": "x"}}, {"state": "cancelled", "seq": 1, "role": "r"},
        {"state": "cancelled", "seq": 1, "role": "r", "removal": "x"}, {**TAKEN, "removal": "deleted"},
    ],
)  # fmt: skip
def test_another_answer_is_no_status(answer: JsonValue) -> None:
    with pytest.raises(BadStatus):
        read_status(answer)


@pytest.mark.asyncio
@pytest.mark.req("C8.1-55", "C8.1-40")
async def test_the_id_always_goes_along() -> None:
    endpoint = Endpoint(TAKEN)
    requests = AnycastRequests(endpoint)
    await requests.status(17, "m1")
    assert (await requests.cancel(17, "m1")).state is State.TAKEN
    args = {"seq": 17, "id": "m1"}
    assert endpoint.asked == [("delivery", "anycast-status", args), ("delivery", "anycast-cancel", args)]


@pytest.mark.asyncio
@pytest.mark.req("C8.1-02")
async def test_an_open_mesh_is_asked_nothing() -> None:
    for call in (AnycastRequests(None).status, AnycastRequests(None).cancel):
        with pytest.raises(OpenMesh):
            await call(17, "m1")
