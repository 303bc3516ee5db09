"""Messages and notices as lines: for a terminal, which nobody's message may move the cursor of, and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import click

from sidecar.app.conversation import Event, Said, Told
from sidecar.cli.main import one_line
from sidecar.rails.envelopes.message import ArtifactPart, DataPart, Message, Part, TextPart
from sidecar.rails.names import Principal

MAX_TEXT: Final = 16_384
"""Characters of one part that a terminal shows; --json shows all."""
_INDENT: Final = "         "


def show(event: Event, *, as_json: bool, ids: bool = False) -> None:
    """Print one event: messages on standard output, notices on standard error; with --json all on standard output.
    Raises BrokenPipeError when nobody reads it."""
    if as_json:
        document = document_of(event)
        click.echo(json.dumps(document))
    elif isinstance(event, Told):
        click.echo(f"-- {one_line(event.text)}", err=True)
    else:
        click.echo("\n".join(lines_of(event, ids=ids)))


def lines_of(said: Said, *, ids: bool = False) -> Iterator[str]:
    """The lines of one message. What is not printable is escaped; further lines of a text are indented."""
    message, meta = said.message, said.meta
    target = {"channel": f"#{meta.target}", "dm": "dm", "anycast": f"role {meta.target}"}[meta.kind]
    marks = "".join(f" [{mark}]" for mark in said.marks)
    first, *others = [line for part in message.parts for line in _part_lines(part)] or ["(nothing)"]
    yield f"{_time(message.ts)} {one_line(target)} {who(meta.sender, message)}: {first}{marks}"
    for line in others:
        yield f"{_INDENT}{line}"
    if ids:
        yield f"{_INDENT}from {one_line(meta.sender)}, id {one_line(message.id) or '(none)'}"


def who(sender: str, message: Message) -> str:
    """The name of the card, with the actor of the principal where the two differ: a name may be anybody's choice."""
    name = one_line(message.sender.name) or "(no name)"
    actor = Principal.from_dot(sender).actor
    return name if name == actor else f"{name} ({actor})"


def printable(text: str) -> Iterator[str]:
    """The lines of a text, each safe for a terminal."""
    shown = text[:MAX_TEXT]
    for line in shown.split("\n"):
        yield "".join(
            one if one.isprintable() else "    " if one == "\t" else one.encode("unicode_escape", "replace").decode()
            for one in line.removesuffix("\r")
        )
    if len(text) > MAX_TEXT:
        yield f"({len(text) - MAX_TEXT} characters more; --json shows all)"


def _part_lines(part: Part) -> Iterator[str]:
    match part:
        case TextPart():
            yield from printable(part.text)
        case DataPart():
            yield from printable(json.dumps(part.data, ensure_ascii=False))
        case ArtifactPart():
            yield one_line(f"artifact {part.name} ({part.media_type}, {part.size} bytes claimed) {part.digest}")
        case _:
            yield from printable(f"{one_line(part.kind)} {json.dumps(dict(part.members), ensure_ascii=False)}")


def _time(ts: float) -> str:
    """The sender's time, in the zone of whoever looks; the day with it when it is not today."""
    try:
        at, now = datetime.fromtimestamp(ts / 1000), datetime.now()
    except (ValueError, OverflowError, OSError):
        return "--:--:--"
    return at.strftime("%H:%M:%S" if at.date() == now.date() else "%Y-%m-%d %H:%M:%S")


def document_of(event: Event) -> dict[str, Any]:
    """One event for programs."""
    if isinstance(event, Told):
        return {"type": "notice", "event": event.event, "text": event.text, **event.about}
    message, meta = event.message, event.meta
    document: dict[str, Any] = {
        "type": "message",
        "kind": meta.kind,
        "target": meta.target,
        "id": message.id,
        "ts": message.ts,
        "from": {"id": meta.sender, "name": message.sender.name, "role": message.sender.role},
        "parts": [_part_document(part) for part in message.parts],
        "ways": [way.value for way in event.ways],
        "marks": list(event.marks),
        "historical": meta.historical,
    }
    for name, value in (("replyTo", message.reply_to), ("contextId", message.context_id)):
        if value is not None:
            document[name] = value
    if message.mentions:
        document["mentions"] = list(message.mentions)
    return document


def _part_document(part: Part) -> dict[str, Any]:
    match part:
        case TextPart() | DataPart():
            return part._asdict()
        case ArtifactPart():
            name, media_type, digest, size, kind = part
            return {"kind": kind, "name": name, "mediaType": media_type, "digest": digest, "size": size}
        case _:
            return {"kind": part.kind, **part.members}


def table(rows: list[tuple[str, ...]]) -> str:
    """Columns of equal width; the first row is the head."""
    safe = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in safe) for at in range(len(safe[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in safe
    )
