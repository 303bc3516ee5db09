"""Steps that several conversations share."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from tests.interop.phux import enums as e
from tests.interop.phux import records as r
from tests.interop.phux.client import Client, Scoped
from tests.interop.phux.connection import Fatal
from tests.interop.phux.frames import Type
from tests.interop.phux.stream import Stream, View

PLENTY = (1_024, 4_194_304)  # the reference maxima of credit
QUEUE_FRAMES = 1_024  # unsent frames of one subscription (P3-36)
AT_ONCE = 100  # commands under way, fewer than a connection may have


def objective(document: bytes = b"{}", objective_id: bytes | None = None) -> dict[str, Any]:
    """Payload values of a new objective."""
    return {"objective_id": objective_id or secrets.token_bytes(16), "schema": 1, "document": document}


def create(client: Client, document: bytes = b"{}", objective_id: bytes | None = None) -> r.ObjectRef:
    """Create one objective; what the result names."""
    values = objective(document, objective_id)
    result = client.command(e.CommandKind.CREATE_OBJECTIVE, values)
    expected = r.ObjectRef(e.ObjectKind.OBJECTIVE, values["objective_id"])
    assert isinstance(result, r.Succeeded)
    assert result.value == expected
    return expected


def update(client: Client, ref: r.ObjectRef, document: bytes) -> r.Succeeded:
    """Replace an objective's document."""
    result = client.command(e.CommandKind.UPDATE_OBJECTIVE, objective(document, ref.id))
    assert isinstance(result, r.Succeeded)
    return result


def create_many(client: Client, count: int) -> None:
    """Create so many objectives, several commands under way at a time."""
    while count > 0:
        some = min(count, AT_ONCE)
        waiting = [client.send_command(e.CommandKind.CREATE_OBJECTIVE, objective()) for _ in range(some)]
        for request_id in waiting:
            assert isinstance(client.wait(request_id)["operation"], r.Succeeded)
        count -= some


def retain(admin: Client, event_bytes: int) -> None:
    """Bound the log of events."""
    values = {"operation_result_secs": 2_592_000, "event_bytes": event_bytes, "artifact_bytes": 1 << 20}
    assert isinstance(admin.command(e.CommandKind.CHANGE_RETENTION, values), r.Succeeded)


def head(client: Client) -> tuple[int, View]:
    """The newest cut and what is visible there."""
    snapshot = client.read_snapshot()
    client.apply_snapshot(snapshot)
    return snapshot.base, snapshot.view()


def follow(client: Client, count: int = 0, size: int = 0) -> Stream:
    """A reserved subscription with a verified view, live with this credit."""
    snapshot = client.read_snapshot(reserve=True)
    client.apply_snapshot(snapshot, count, size)
    assert snapshot.stream is not None
    return snapshot.stream


def overflow(client: Client, writer: Client, stream: Stream) -> r.ObjectRef:
    """Write until the stream, which has no credit, has more unsent events than it may; waits for its gap."""
    ref = create(writer)
    before = len(stream.gaps)
    create_many(writer, QUEUE_FRAMES // 2 + 1)  # an objective and its operation are two events
    client.pump_until(lambda: len(stream.gaps) > before)
    return ref


def events_until(client: Client, stream: Stream, count: int) -> list[r.ReplayEvent]:
    """The stream's first `count` events."""
    client.pump_until(lambda: len(stream.events) >= count)
    return stream.events[:count]


def same_view(stream: Stream, view: View) -> bool:
    """Whether a followed view is what a snapshot says."""
    return stream.view is not None and stream.view.revisions == view.revisions and stream.view.records == view.records


def refused(code: e.ErrorCode, client: Client, request: Type, **values: Any) -> None:
    """The request gets this scoped error and the connection serves on."""
    with pytest.raises(Scoped) as caught:
        client.call(request, **values)
    assert caught.value.code is code
    client.ping()


def killed(code: e.ErrorCode, client: Client, request: Type, **values: Any) -> None:
    """The request ends the connection with this error."""
    with pytest.raises(Fatal) as caught:
        client.call(request, **values)
    assert caught.value.code is code
