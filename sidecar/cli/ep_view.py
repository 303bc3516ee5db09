"""Answers, refusals and descriptions of endpoints as text: for a terminal, which no answer may move the cursor of, and
for programs. The outcome always stands beside them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

from sidecar.cli.main import one_line
from sidecar.ops.exitcodes import CallCode
from sidecar.rails.endpoint.calls_types import Answer
from sidecar.rails.endpoint.codes import CallError, CallFailed, CallRefused, Code, Outcome

MAX_SHOWN: Final = 16_384
"""Characters of one answer that a terminal shows; a pipe or --json gets all."""
WATCH: Final = "watch"
"""In the place of the command, in the errors of a watch."""
_SIGNATURE: Final = 160
_DEEP: Final = 2
_OUTCOMES: Final = {
    Outcome.EXECUTED: "it was executed",
    Outcome.NOT_EXECUTED: "it was not executed",
    Outcome.UNKNOWN: "whether it was executed is unknown",
}


def pretty(value: object) -> str:
    """JSON over several lines, in which everything that is not printable is escaped as JSON escapes it: still the same
    JSON, and safe for a terminal."""
    return _escaped(json.dumps(value, indent=2, ensure_ascii=False))


def safe_json(value: object) -> str:
    """The same in one line, cut after as many characters as a terminal shows."""
    text = _escaped(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text) - MAX_SHOWN} characters more)"


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)


def show_data(value: object) -> None:
    """One answer on standard output: cut at a terminal, whole in a pipe. Raises BrokenPipeError."""
    text = pretty(value)
    if sys.stdout.isatty() and len(text) > MAX_SHOWN:
        text = f"{text[:MAX_SHOWN]}\n({len(text) - MAX_SHOWN} characters more; a pipe or --json gets all)"
    click.echo(text)


def show_reply(reply: Answer, *, as_json: bool) -> CallCode:
    """A reply: its data on standard output, who answered on standard error. With --json one line with all of it."""
    if as_json:
        click.echo(json.dumps(reply_document(reply)))
    else:
        show_data(reply.data)
        click.echo(f"-- ok: executed by {_who(reply.instance, reply.epoch)} ({one_line(reply.id)})", err=True)
    return CallCode.OK


def show_error(error: CallError, *, as_json: bool, what: str = "") -> CallCode:
    """What became of a call that gave no data."""
    code = code_of(error)
    if as_json:
        click.echo(json.dumps({**error_document(error), "exit_code": int(code)}))
    for line in error_lines(error, what):
        click.echo(line, err=True)
    return code


def error_lines(error: CallError, what: str = "") -> list[str]:
    """One line that says what happened, by whom and with which outcome; then the details, one line each."""
    about = f"{one_line(what)}: " if what else ""
    if isinstance(error, CallRefused) and error.instance:
        said = f"refused by {_who(error.instance, error.epoch)}"
    elif isinstance(error, CallRefused):
        said = "refused"
    else:
        said = "failed"
    lines = [f"-- {about}{said}: {one_line(str(error))}; {_OUTCOMES[error.outcome]}{_hint(error)}"]
    lines += [f"--   {one_line(json.dumps(dict(one), ensure_ascii=False))[:2_000]}" for one in error.details]
    return lines


def code_of(error: CallError) -> CallCode:
    """The exit code: what may have been done comes first, then who said no."""
    if error.outcome is Outcome.EXECUTED:
        return CallCode.EXECUTED
    if error.outcome is Outcome.UNKNOWN:
        return CallCode.UNKNOWN
    if isinstance(error, CallFailed) and error.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED):
        return CallCode.NO_CONNECTION
    return CallCode.REFUSED


def _hint(error: CallError) -> str:
    if not isinstance(error, CallFailed) or error.outcome is not Outcome.NOT_EXECUTED:
        return ""
    if error.code == Code.PERMISSION_DENIED and error.command == WATCH:
        return "; an operator grants it: sidecar principal add --hear ENDPOINT:EVENT"
    if error.code == Code.PERMISSION_DENIED:
        return "; what these creds may call: sidecar ep list"
    if error.code == Code.UNIMPLEMENTED:
        return "; what these creds may call of it: sidecar ep describe; to be granted with: sidecar principal add --may"
    return "; who serves it: sidecar ep list" if error.code == Code.UNAVAILABLE else ""


def _who(instance: str, epoch: int) -> str:
    return f"{one_line(instance)} at epoch {epoch}"


def reply_document(reply: Answer) -> dict[str, Any]:
    """A reply for programs."""
    return {
        "type": "answer",
        "ok": True,
        "outcome": Outcome.EXECUTED.value,
        "data": reply.data,
        "instance": reply.instance,
        "epoch": reply.epoch,
        "id": reply.id,
    }


def error_document(error: CallError) -> dict[str, Any]:
    """A refusal (the endpoint's own words) or a failure (what happened on the way) for programs."""
    document: dict[str, Any] = {
        "type": "refusal" if isinstance(error, CallRefused) else "failure",
        "ok": False,
        "outcome": error.outcome.value,
        "code": str(error.code),
        "message": error.message,
        "details": [dict(one) for one in error.details],
        "id": error.id or None,
    }
    if isinstance(error, CallRefused) and error.instance:
        document |= {"instance": error.instance, "epoch": error.epoch}
    return document


# ---- contracts ----


def signature(schema: Any) -> str:
    """A schema in a few words, bounded: ``{a: integer, b?: string}``, ``-`` for nothing, ``...`` for what is deep."""
    text = "-" if schema == {"type": "null"} else _signed(schema, schema, _DEEP)
    return one_line(text if len(text) <= _SIGNATURE else f"{text[: _SIGNATURE - 3]}...")


def _signed(schema: Any, root: Any, deep: int) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(reference := schema.get("$ref"), str):
        name = reference.rpartition("/")[2]
        found = root.get("$defs", {}).get(name) if isinstance(root, Mapping) and reference.startswith("#") else None
        return _signed(found, root, deep - 1) if found is not None and deep else "..."
    if "enum" in schema or "const" in schema:
        return "|".join(json.dumps(one) for one in schema.get("enum", [schema.get("const")]))
    for word in ("anyOf", "oneOf"):
        if schema.get(word):
            return " | ".join(_signed(one, root, deep - 1) for one in schema[word]) if deep else "..."
    kind = schema.get("type", "any")
    if kind == "object" and schema.get("properties"):
        if not deep:
            return "{...}"
        needed = schema.get("required", ())
        members = (
            f"{name}{'' if name in needed else '?'}: {_signed(one, root, deep - 1)}"
            for name, one in schema["properties"].items()
        )
        return f"{{{', '.join(members)}}}"
    if kind == "array":
        return f"[{_signed(schema.get('items', True), root, deep - 1)}]" if deep else "[...]"
    return kind if isinstance(kind, str) else "|".join(map(str, kind))
