"""Plain-Python reading of strict JSON, written for clarity: the tests compare ``cext.json_scan`` with it."""

from __future__ import annotations

import math
import re

SPACE = re.compile(rb"[ \t\n\r]*")
PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
HEX = re.compile(rb"[0-9a-fA-F]{4}")
HEX_START = re.compile(rb"[0-9a-fA-F]{0,4}\Z")
LOW_HALF = re.compile(rb"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
ESCAPES = {b'"': '"', b"\\": "\\", b"/": "/", b"b": "\b", b"f": "\f", b"n": "\n", b"r": "\r", b"t": "\t"}
WORDS: dict[bytes, object] = {b"true": True, b"false": False, b"null": None}


class JsonError(ValueError):
    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason, offset)
        self.reason, self.offset = reason, offset


class Reader:
    def __init__(self, data: bytes, depth: int, safe_integers: bool) -> None:
        self.data, self.depth, self.safe_integers = data, depth, safe_integers
        self.at = 0

    def space(self) -> None:
        found = SPACE.match(self.data, self.at)
        assert found is not None
        self.at = found.end()

    def peek(self) -> bytes:
        """The next byte behind white space."""
        self.space()
        if self.at == len(self.data):
            raise JsonError("truncated", self.at)
        return self.data[self.at : self.at + 1]

    def value(self, room: int) -> object:
        first = self.peek()
        if first in (b"{", b"["):
            if room == 0:
                raise JsonError("depth", self.at)
            self.at += 1
            return self.members(room - 1) if first == b"{" else self.items(room - 1)
        if first == b'"':
            self.at += 1
            return self.string()
        for word, value in WORDS.items():
            if self.data.startswith(word, self.at):
                self.at += len(word)
                return value
        return self.number()

    def items(self, room: int) -> list[object]:
        found: list[object] = []
        if self.data[self.at :] and self.peek() == b"]":
            self.at += 1
            return found
        while True:
            found.append(self.value(room))
            if self.next_of(b"]"):
                return found

    def members(self, room: int) -> dict[str, object]:
        found: list[tuple[str, int, object]] = []
        if self.data[self.at :] and self.peek() == b"}":
            self.at += 1
            return {}
        while True:
            if self.peek() != b'"':
                raise JsonError("syntax", self.at)
            self.at += 1
            start = self.at
            name = self.string()
            if self.peek() != b":":
                raise JsonError("syntax", self.at)
            self.at += 1
            found.append((name, start, self.value(room)))
            if self.next_of(b"}"):
                break
        seen: set[str] = set()
        for name, start, _ in found:
            if name in seen:
                raise JsonError("duplicate", start)
            seen.add(name)
        return {name: value for name, _, value in found}

    def next_of(self, closing: bytes) -> bool:
        """Whether the container closes here; a comma says that it does not."""
        byte = self.peek()
        if byte not in (b",", closing):
            raise JsonError("syntax", self.at)
        self.at += 1
        return byte == closing

    def string(self) -> str:
        parts: list[str] = []
        while True:
            plain = PLAIN.match(self.data, self.at)
            assert plain is not None
            parts.append(plain[0].decode())
            self.at = plain.end()
            byte = self.data[self.at : self.at + 1]
            if byte == b'"':
                self.at += 1
                return "".join(parts)
            if byte and byte != b"\\":
                raise JsonError("syntax", self.at)
            if len(self.data) - self.at < 2:
                raise JsonError("truncated", len(self.data))
            letter = self.data[self.at + 1 : self.at + 2]
            if letter == b"u":
                parts.append(self.unicode_escape())
            elif letter in ESCAPES:
                parts.append(ESCAPES[letter])
                self.at += 2
            else:
                raise JsonError("escape", self.at)

    def unicode_escape(self) -> str:
        start = self.at
        digits = HEX.match(self.data, start + 2)
        if digits is None:
            if HEX_START.match(self.data, start + 2):
                raise JsonError("truncated", len(self.data))
            raise JsonError("escape", start)
        unit = int(digits[0], 16)
        self.at = start + 6
        if not 0xD800 <= unit <= 0xDFFF:
            return chr(unit)
        low = LOW_HALF.match(self.data, self.at)
        if unit >= 0xDC00 or low is None:
            raise JsonError("surrogate", start)
        self.at += 6
        return (unit.to_bytes(2, "big") + bytes.fromhex(low[1].decode())).decode("utf-16-be")

    def number(self) -> int | float:
        found = NUMBER.match(self.data, self.at)
        if found is None:
            raise JsonError("syntax", self.at)
        text, behind = found[0].decode(), self.data[found.end() : found.end() + 1]
        integer = found[1] is None and found[2] is None
        if (integer and behind == b".") or (found[2] is None and behind in (b"e", b"E")):
            raise JsonError("syntax", self.at)
        unsafe = integer and self.safe_integers and (len(text) > 17 or abs(int(text)) > 2**53 - 1)
        if unsafe or not math.isfinite(float(text)):
            raise JsonError("number", self.at)
        self.at = found.end()
        if integer and len(text) <= 20 and -(2**63) <= int(text) < 2**64:
            return int(text)
        return float(text)


def parse(data: bytes, *, limit: int, depth: int, safe_integers: bool) -> object:
    """The value of strict JSON text; integers beyond 64 bits are floats."""
    if len(data) > limit:
        raise JsonError("size", limit)
    if data.startswith(b"\xef\xbb\xbf"):
        raise JsonError("bom", 0)
    try:
        data.decode()
    except UnicodeDecodeError:
        raise JsonError("utf8", 0) from None
    reader = Reader(data, depth, safe_integers)
    value = reader.value(depth)
    reader.space()
    if reader.at != len(data):
        raise JsonError("trailing", reader.at)
    return value
