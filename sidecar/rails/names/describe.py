"""Prints the name table as Markdown, from the very templates that build and parse::

python -m sidecar.rails.names.describe > docs/names.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from sidecar.rails.names import headers, limits
from sidecar.rails.names.buckets import BUCKETS, OBJECT_BUCKETS
from sidecar.rails.names.streams import STREAMS
from sidecar.rails.names.table import SECTIONS
from sidecar.rails.names.tokens import (
    ARTIFACT_DIGEST,
    ENDPOINT_NAME,
    EXTENSION_KIND,
    GRAMMARS,
    REPLAY_WINDOW,
    Grammar,
)

_INTRODUCTION = """\
# Names

Written by `python -m sidecar.rails.names.describe` from the table that builds and parses every name; a test holds this
page to it. Do not edit it.

`<field>` is one value, `<field...>` a value of several tokens, `<field:grammar>` a value whose grammar is called
differently. From each template come four forms: the concrete name, its parts, the subscribe pattern (an absent field is
`*`), and the pattern of everything below. Permissions are such patterns, with JetStream subjects spelled in full.

A name is never rewritten to fit; only the name of a space, and the segments of a channel that a person typed, are
sanitized: trimmed, and what is not `[A-Za-z0-9_-]` becomes `_`."""

_PLACEHOLDER = "<space>"


def describe() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for title, templates in SECTIONS:
        parts.append(f"## {title}")
        rows = ((one.name, f"`{one.text}`", one.use, one.row) for one in templates)
        parts.append(_table(("name", "template", "use", "row"), rows))
    parts += ["## What the streams capture", _table(("stream", "subjects"), _captures())]
    parts += ["## Keys of the buckets", _table(("bucket", "keys"), _keys())]
    parts += ["## Grammars", _table(("grammar", "shape", "length", "in patterns", "row"), _grammars())]
    parts += ["## Literals", _table(("name", "value"), _constants(headers))]
    parts += ["## Limits", _table(("name", "value"), _constants(limits))]
    return "\n\n".join(parts) + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _captures() -> Iterator[tuple[str, str]]:
    space = "SPACE"
    for stream in STREAMS:
        shown = " · ".join(f"`{subject}`" for subject in stream.subjects(space))
        yield f"`{stream.name.text}`", shown.replace(space, _PLACEHOLDER)


def _keys() -> Iterator[tuple[str, str]]:
    for bucket in BUCKETS:
        yield f"`{bucket.name.text}`", " · ".join(f"`{key.text}`" for key in bucket.keys)
    for store in OBJECT_BUCKETS:
        yield f"`{store.name.text}`", "objects"


def _grammars() -> Iterator[tuple[str, str, str, str, str]]:
    def code(shape: str) -> str:
        return "`" + shape.replace("|", r"\|") + "`"

    others: tuple[Grammar, ...] = (ENDPOINT_NAME, EXTENSION_KIND, ARTIFACT_DIGEST, REPLAY_WINDOW)
    for one in (*GRAMMARS.values(), *others):
        length = str(one.longest) if one.shortest == one.longest else f"{one.shortest}-{one.longest}"
        shape = code(one.shape)
        if one.largest is not None:
            shape += f", at most {one.largest:,}"
        if one.refused:
            shape += ", not " + ", ".join(f"`{word}`" for word in sorted(one.refused))
        yield one.name, shape, length, code(one.pattern) if one.pattern else "", one.row


def _constants(module: object) -> Iterator[tuple[str, str]]:
    for name, value in vars(module).items():
        if not name.isupper() or name.startswith("_"):
            continue
        if isinstance(value, (frozenset, tuple)):
            yield name, " · ".join(f"`{one}`" for one in (sorted(value) if isinstance(value, frozenset) else value))
        elif isinstance(value, bytes):
            yield name, f"`{value.decode('ascii')}`"
        else:
            yield name, f"{value:,}" if isinstance(value, int) else f"`{value}`"


if __name__ == "__main__":
    sys.stdout.write(describe())
