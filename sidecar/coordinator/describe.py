"""Prints the protocol as Markdown, from the very tables that encode, decode and decide::

python -m sidecar.coordinator.describe > docs/protocol.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields
from enum import Enum, IntEnum, IntFlag
from types import ModuleType

from sidecar.coordinator.machines.all import MACHINES
from sidecar.coordinator.machines.machine import Machine, Step
from sidecar.coordinator.wire import enums, limits, records, results, terminal
from sidecar.coordinator.wire.enums import CommandKind, EventKind, FrameType, ObjectKind
from sidecar.coordinator.wire.errors import ERRORS, FATAL_CODES
from sidecar.coordinator.wire.events import EVENT_OBJECTS, EVENT_PAYLOADS
from sidecar.coordinator.wire.fields import Body
from sidecar.coordinator.wire.frames import FRAMES
from sidecar.coordinator.wire.images import Record
from sidecar.coordinator.wire.limits import HARD, PROTOCOL, QUOTAS, REFERENCE, Limits
from sidecar.coordinator.wire.payloads import COMMANDS, RECORD_PAYLOADS
from sidecar.coordinator.wire.table import FRAME_TABLE, STATES, FrameRow

_INTRODUCTION = f"""\
# Wire protocol

Written by `python -m sidecar.coordinator.describe` from the tables that the code itself uses; a test holds this
page to them. Do not edit it.

`phux-coordinator` {".".join(str(part) for part in PROTOCOL)}. A message is `u32 length ‖ u8 type ‖ body`; `length`
counts type and body. A body is a run of TLV fields, `varint id ‖ u8 4 ‖ varint length ‖ value`, each id once and
increasing. Unknown fields are skipped, except in frames marked strict. All integers are big-endian; `bytes` and `str`
are `u32 length ‖ content`; `‖` is concatenation."""

_STATES = """\
States are those of the receiver. Server: PRE before COORD_HELLO, CHAL after its challenge, ACT after COORD_HELLO_OK.
Client: PRE until the challenge, CHAL after its response, ACT after COORD_HELLO_OK. In any other state, from the wrong
side, or with an unknown type a frame is refused before a byte of its body is reserved (PROTOCOL_ERROR, fatal).
Until COORD_HELLO_OK `length` is at most 16,384; then the cap is F: the selected frame, P: that and the selected page
bytes + 1, T: F, and the content of `payload` is at most the selected typed payload."""

_SENDERS = {"c": "client", "s": "server", "both": "either"}


def describe() -> str:
    """The whole page."""
    parts: list[str] = [_INTRODUCTION]
    parts += _frames()
    parts += _bodies("Command payloads", ((f"{kind} {CommandKind(kind).name}", COMMANDS[kind]) for kind in COMMANDS))
    parts += _bodies(
        "Snapshot record payloads",
        ((f"{kind:d} {kind.name}", RECORD_PAYLOADS[kind]) for kind in sorted(RECORD_PAYLOADS)),
    )
    parts += _events()
    parts += _records()
    parts += _enums()
    parts += _limits()
    parts += _errors()
    parts += _machines()
    return "\n\n".join(parts) + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _frame_row(kind: FrameType, row: FrameRow) -> tuple[str, str, str, str, str, str]:
    legal = "any" if row.legal == set(STATES) else ", ".join(state for state in STATES if state in row.legal)
    replies = " or ".join(reply.name for reply in row.replies)
    return f"0x{kind:02x}", _SENDERS[row.direction], kind.name, legal, row.cap, replies


def _field_rows(body: type[Body]) -> Iterator[tuple[int, str, str, str]]:
    for item in body.FIELDS:
        yield item.id, item.name, item.codec.doc, "required" if item.required else "optional"


def _frames() -> Iterator[str]:
    yield "## Frames"
    yield _STATES
    yield _table(
        ("type", "sender", "frame", "states", "cap", "reply"),
        (_frame_row(kind, row) for kind, row in FRAME_TABLE.items()),
    )
    for kind in FRAME_TABLE:
        shape = FRAMES[kind]
        strict = " (strict: no unknown fields, ascending)" if shape.STRICT else ""
        yield f"### 0x{kind:02x} {kind.name}{strict}"
        yield _table(("id", "field", "image", ""), _field_rows(shape))


def _bodies(title: str, bodies: Iterable[tuple[str, type[Body]]]) -> Iterator[str]:
    yield f"## {title}"
    rows: list[tuple[object, ...]] = []
    for name, body in bodies:
        rows += [(name, *row) for row in _field_rows(body)]
    yield _table(("kind", "id", "field", "image", ""), rows)


def _events() -> Iterator[str]:
    yield "## Event payloads"
    rows = (
        (int(kind), kind.name, " or ".join(ObjectKind(about).name for about in sorted(EVENT_OBJECTS[kind])),
         EVENT_PAYLOADS[kind].doc)
        for kind in EventKind
    )  # fmt: skip
    yield _table(("kind", "event", "object", "payload"), rows)


def _own_records(module: ModuleType) -> Iterator[type[Record]]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Record) and value.__module__ == module.__name__:
            yield value


def _records() -> Iterator[str]:
    yield "## Positional records"
    rows = []
    for module in (records, results, terminal):
        for kind in _own_records(module):
            lead = [] if kind.TAG is None else [f"tag {kind.TAG:d}"]
            lead += [f"constant `{kind.LEAD.hex()}`"] if kind.LEAD else []
            columns = " ‖ ".join(lead + [f"{name}: {codec.doc}" for name, codec in kind.COLUMNS])
            low, high = kind.CODEC.width
            rows.append((kind.__name__, low if low == high else f"{low}..{high}", columns or "empty"))
    yield _table(("record", "bytes", "columns"), rows)


def _enums() -> Iterator[str]:
    yield "## Closed value sets"
    rows = []
    for value in vars(enums).values():
        if isinstance(value, type) and issubclass(value, IntEnum | IntFlag) and value.__module__ == enums.__name__:
            rows.append((value.__name__, " · ".join(f"{member.name} {int(member)}" for member in value)))
    yield _table(("set", "values"), rows)


def _limits() -> Iterator[str]:
    yield "## Limits"
    yield _table(
        ("negotiated", "hard", "reference"),
        ((item.name, getattr(HARD, item.name), getattr(REFERENCE, item.name)) for item in fields(Limits)),
    )
    constants = ((name, value) for name, value in vars(limits).items() if name.isupper() and isinstance(value, int))
    yield _table(("fixed", "value"), constants)
    yield _table(
        ("resource", "connection", "principal", "server"),
        ((name, *("-" if cap is None else cap for cap in caps)) for name, caps in QUOTAS.items()),
    )


def _errors() -> Iterator[str]:
    yield "## Errors"
    yield "Scoped errors end their request and are fatal only in the handshake. INTERNAL is fatal without a request."
    rows = (
        (int(code), code.name, "fatal" if code in FATAL_CODES else "scoped", (kind.__doc__ or "").strip())
        for code, kind in ERRORS.items()
    )
    yield _table(("code", "name", "", "meaning"), rows)


_ANY = "every event"
_MACHINES = """\
Every state with every event. `same` keeps the state; a refusal is a COORD_ERROR of that code, and a fatal one closes
the connection too. Steps of the connection close it whenever they refuse."""


def _machines() -> Iterator[str]:
    yield "## State machines"
    yield _MACHINES
    for machine in MACHINES:
        yield f"### {machine.title}"
        yield _table(("state", "event", "next", "reply", "refusal"), _machine_rows(machine))


def _machine_rows(machine: Machine[Enum, Enum]) -> Iterator[tuple[str, str, str, str, str]]:
    """One row for each step that a state has, with all events that lead to it."""
    for state in machine.states:
        steps: dict[Step[Enum], list[str]] = {}
        for event in machine.events:
            steps.setdefault(machine.step(state, event), []).append(str(event.value))
        for step, events in steps.items():
            following = "same" if step.next is state else step.next.name
            refusal = "" if step.error is None else step.error.name
            named = _ANY if len(steps) == 1 else " · ".join(events)
            yield state.name, named, following, step.reply, refusal


if __name__ == "__main__":
    sys.stdout.write(describe())
