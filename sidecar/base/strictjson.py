"""JSON in, JSON out: strict text, values that JSON can hold, and the canonical form (RFC 8259, I-JSON, RFC 8785).

Text is checked whole before a value is built of it. A name that stands twice in one object, half of a surrogate pair, a
number that is no finite double, a byte order mark, bytes that are no UTF-8, anything behind the value, and text beyond
the bounds are refused: readers that let such text pass do not agree on what it says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final, TypeAlias

import orjson
import rfc8785

from cext.json_scan import JsonError as JsonError
from cext.json_scan import check as _check

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"

MAX_BYTES: Final = 1 << 20
"""Bytes of one text unless the caller knows better; the ``max_payload`` of an untouched broker."""
MAX_DEPTH: Final = 128
"""Containers within each other, of text and of values."""
SAFE_INTEGER: Final = 2**53 - 1
"""The largest magnitude of an integer that every reader of JSON takes for the same number."""
_PATH_LENGTH: Final = 160


class NotJson(ValueError):  # noqa: N818 - it says what the value is
    """A value that JSON cannot hold, or that readers of JSON would not agree on.

    ``path`` names the offending member from the root, such as ``data.a[1]``, in at most 160 characters. ``why`` says
    what is wrong with it. Neither holds any of the value but the names on the way to it.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path or 'the value'} {why}")
        self.path = path
        self.why = why


def parse(
    data: bytes | bytearray | memoryview,
    *,
    limit: int = MAX_BYTES,
    depth: int = MAX_DEPTH,
    safe_integers: bool = False,
) -> JsonValue:
    """The value of one strict JSON text of at most ``limit`` bytes; raises :class:`JsonError` before one is built.

    ``safe_integers`` refuses integer literals beyond 2**53 - 1 too (rows C13.4-23, C13.7-33). Without it those beyond
    64 bits become floats. Lists and dicts are new and of exactly these types.
    """
    _check(data, limit=limit, depth=depth, safe_integers=safe_integers)
    value: JsonValue = orjson.loads(data)
    return value


def canonical_text(data: bytes | bytearray | memoryview, *, limit: int = MAX_BYTES, depth: int = MAX_DEPTH) -> bytes:
    """The RFC 8785 form of one strict JSON text with safe integers; raises :class:`JsonError`."""
    return canonical(parse(data, limit=limit, depth=depth, safe_integers=True))


def canonical(value: JsonValue) -> bytes:
    """The RFC 8785 form of a value; raises :class:`NotJson`."""
    survey = _Survey()
    survey.take(value)
    if survey.orjson_agrees:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return rfc8785.dumps(value)


def check_value(value: object, path: str = "") -> None:
    """Refuse with :class:`NotJson` what is no JSON value at every depth (row C5-09); ``path`` names the value itself.

    JSON values are None, bool, str, int up to 2**53 - 1, finite float, list, and dict with names of str: exactly these
    types, because an encoder would rewrite any other one silently.
    """
    _Survey().take(value, path)


class _Survey:
    """One walk over a value: its first fault, and whether orjson writes it as RFC 8785 does."""

    __slots__ = ("orjson_agrees", "steps")

    def __init__(self) -> None:
        # orjson spells some floats in another way, and sorts names by UTF-8: the order of UTF-16 where all is ASCII.
        self.orjson_agrees = True
        self.steps: list[str | int] = []

    def take(self, value: object, path: str = "") -> None:
        fault = self._fault(value, MAX_DEPTH)
        if fault is not None:
            raise NotJson(_path_text(path, self.steps), fault)

    def _fault(self, value: object, depth: int) -> str | None:
        """What is wrong, with ``steps`` the way to it from the innermost step outwards."""
        kind = type(value)
        if kind is str:
            return _text_fault(value)  # type: ignore[arg-type]
        if value is None or kind is bool:
            return None
        if kind is int:
            return None if -SAFE_INTEGER <= value <= SAFE_INTEGER else "is an integer beyond 2**53 - 1"  # type: ignore[operator]
        if kind is float:
            if self.orjson_agrees:
                self.orjson_agrees = _spelled_alike(value)  # type: ignore[arg-type]
            return None if isfinite(value) else "is no finite number"  # type: ignore[arg-type]
        if kind is not dict and kind is not list:
            return "is of a type that JSON does not have"
        if depth == 0:
            return f"lies deeper than {MAX_DEPTH} levels"
        return self._members(value, depth - 1) if kind is dict else self._items(value, depth - 1)  # type: ignore[arg-type]

    def _members(self, members: dict[object, object], depth: int) -> str | None:
        for name, member in members.items():
            if type(name) is not str:
                return "has a name that is no string"
            if not name.isascii():
                self.orjson_agrees = False
                if (fault := _text_fault(name)) is not None:
                    return f"has a name that {fault}"
            # Most members are plain: to look at them here saves a call for each.
            kind = type(member)
            if kind is str:
                if member.isascii():  # type: ignore[attr-defined]
                    continue
            elif (kind is int and -SAFE_INTEGER <= member <= SAFE_INTEGER) or kind is bool or member is None:  # type: ignore[operator]
                continue
            if (fault := self._fault(member, depth)) is not None:
                self.steps.append(name)
                return fault
        return None

    def _items(self, items: list[object], depth: int) -> str | None:
        for index, item in enumerate(items):
            if (fault := self._fault(item, depth)) is not None:
                self.steps.append(index)
                return fault
        return None


def _spelled_alike(value: float) -> bool:
    """Whether orjson writes a float as RFC 8785 does: the shortest digits, without an exponent and with a fraction.

    A float with a fraction is below 2**53, where neither uses an exponent; small ones and whole ones differ.
    """
    return abs(value) >= 1e-4 and not value.is_integer() if isfinite(value) else False


def _text_fault(text: str) -> str | None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair"
    return None


def _path_text(path: str, steps: list[str | int]) -> str:
    """The way to a member as it is written in code, shortened at its end."""
    parts = [path]
    length = len(path)
    for step in reversed(steps):
        if isinstance(step, int):
            part = f"[{step}]"
        elif step.isascii() and step.isidentifier():
            part = f".{step}" if length else step
        else:
            # Escaped, so that no name can bring line ends or half surrogates into a log.
            part = f"[{json.dumps(step[:_PATH_LENGTH])}]"
        parts.append(part)
        length += len(part)
        if length > _PATH_LENGTH:
            break
    text = "".join(parts)
    return text if len(text) <= _PATH_LENGTH else f"{text[: _PATH_LENGTH - 3]}..."
