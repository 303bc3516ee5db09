"""Grammars of the values that stand in names (Data D5): one table, checked in one place.

A ``Grammar`` refuses; it never rewrites (C2-08). The one rewriting function is ``sanitize``, for space names and the
segments of a channel that a person typed (C3-02, C3-11); what it returns cannot be turned back (C3-03).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sidecar.rails.names.errors import InvalidName, excerpt
from sidecar.rails.names.limits import (
    HISTORY_READER_SLOTS,
    MAX_CHANNEL,
    MAX_COMMAND,
    MAX_NAME,
    MAX_POOL,
    MAX_SAFE_INTEGER,
    MAX_SUBJECT,
    MAX_TOKEN,
)

WILDCARD = "*"
"""One token of a subscribe or allow pattern."""
TAIL = ">"
"""One token or more, last in a pattern."""

MODES = ("self", "owner", "any", "child", "ledger", "handle", "exact")
"""Authorization modes of targeted commands, reserved in the place of a caller's owner (C13.2-21)."""
PLANES = ("manager", "delivery")
"""Planes that answer a liveness probe, a closed set (C6.1-02)."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What one placeholder may hold.

    ``shape`` is the whole value, ``alphabet`` a character class for values that share a token with others.
    ``dotted`` values are several tokens. ``pattern`` is the shape in subscribe and allow patterns, if it is wider.
    """

    name: str
    shape: str
    alphabet: str
    longest: int
    row: str
    shortest: int = 1
    dotted: bool = False
    pattern: str | None = None
    largest: int | None = None
    refused: frozenset[str] = frozenset()
    _shape: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shape", re.compile(self.shape))
        object.__setattr__(self, "_pattern", re.compile(self.pattern or self.shape))

    def check(self, value: object) -> str:
        """The value, if it is a concrete one; InvalidName otherwise. Length and type are looked at first."""
        return self._held(value, self._shape)

    def check_pattern(self, value: object) -> str:
        """The value, if it may stand in a subscribe or allow pattern; InvalidName otherwise (C3-12)."""
        return self._held(value, self._pattern)

    def accepts(self, value: object) -> bool:
        """Whether ``check`` takes the value."""
        try:
            self.check(value)
        except InvalidName:
            return False
        return True

    def _held(self, value: object, shape: re.Pattern[str]) -> str:
        if type(value) is int and self.largest is not None and 0 <= value <= self.largest:
            return str(value)
        if not isinstance(value, str):
            raise InvalidName(self.name, f"{excerpt(value)} is not allowed here", self.row)
        if not self.shortest <= len(value) <= self.longest:
            bounds = f"{self.shortest} to {self.longest}"
            raise InvalidName(self.name, f"{len(value)} characters, allowed are {bounds}", self.row)
        if shape.fullmatch(value) is None or value in self.refused:
            raise InvalidName(self.name, f"{excerpt(value)} does not fit the grammar", self.row)
        if self.largest is not None and int(value) > self.largest:
            raise InvalidName(self.name, f"{value} is above {self.largest}", self.row)
        return value


def _words(name: str, words: tuple[str, ...], row: str) -> Grammar:
    return Grammar(name, "|".join(map(re.escape, words)), "[A-Za-z0-9-]", max(map(len, words)), row)


def _number(name: str, row: str, largest: int = MAX_SAFE_INTEGER) -> Grammar:
    return Grammar(name, "0|[1-9][0-9]*", "[0-9]", len(str(largest)), row, largest=largest)


_HANDLE = "[A-Za-z0-9_]"
_WORD = "[A-Za-z0-9_-]"
_LABEL = "[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_SEGMENT_OR_STAR = rf"(?:{_WORD}+|\*)"
_ANY_TOKEN = r"[^.\s*>]+"  # noqa: S105 - a token of a subject

_GRAMMARS = (
    Grammar("space", f"{_WORD}+", _WORD, MAX_TOKEN, "C3-02"),
    Grammar("owner", f"{_HANDLE}+", _HANDLE, MAX_TOKEN, "C2-08"),
    Grammar("actor", f"{_HANDLE}+", _HANDLE, MAX_TOKEN, "C2-08"),
    Grammar("caller_owner", f"{_HANDLE}+", _HANDLE, MAX_TOKEN, "C13.2-21", refused=frozenset(MODES)),
    Grammar("derived_owner", "u_[a-z2-7]{26}", _HANDLE, 28, "C2-02", shortest=28),
    Grammar("platform_owner", "p_[a-z2-7]{26}", _HANDLE, 28, "OPEN C2-d", shortest=28),
    Grammar("uid", "[a-z0-9]{26,32}", "[a-z0-9]", 32, "C13.2-09", shortest=26),
    Grammar("instance", "[a-z0-9]{26,32}", "[a-z0-9]", 32, "C13.2-09", shortest=26),
    Grammar("role", f"{_WORD}+", _WORD, MAX_TOKEN, "C3-16", pattern=rf"{_WORD}+|\*"),
    Grammar("word", f"{_WORD}+", _WORD, MAX_TOKEN, "C3-02"),
    Grammar(
        "channel",
        rf"{_WORD}+(?:\.{_WORD}+)*",
        "[A-Za-z0-9_.-]",
        MAX_CHANNEL,
        "C3-11..15",
        dotted=True,
        pattern=rf"(?:{_SEGMENT_OR_STAR}\.)*(?:{_SEGMENT_OR_STAR}|>)",
    ),
    Grammar("family", rf"(?:{_WORD}+\.)+>", "[A-Za-z0-9_.>-]", MAX_CHANNEL, "D5", shortest=3, dotted=True),
    # A member's key holds a channel, or a family whose final '>' is stored as '=' (a KV key has no '>').
    Grammar("member_channel", rf"{_WORD}+(?:\.{_WORD}+)*(?:\.=)?", "[A-Za-z0-9_.=-]", MAX_CHANNEL, "D3", dotted=True),
    Grammar("connection", f"{_WORD}{{8,120}}", _WORD, 120, "C2-17", shortest=8),
    _words("plane", PLANES, "C6.1-02"),
    Grammar("nonce", f"{_WORD}{{22,64}}", _WORD, 64, "C13.2-17", shortest=22),
    Grammar("id", f"{_WORD}{{1,64}}", _WORD, MAX_TOKEN, "C13.2-11"),
    Grammar("endpoint", f"{_LABEL}(?:_{_LABEL})*", "[a-z0-9_-]", MAX_TOKEN, "C13.2-04"),
    Grammar("command", "[a-z0-9-]{1,32}", "[a-z0-9-]", MAX_COMMAND, "C13.2-07"),
    Grammar("pool", "[a-z0-9-]{1,32}", "[a-z0-9-]", MAX_POOL, "C13.2-12"),
    Grammar("grant", "[a-z0-9]{1,32}", "[a-z0-9]", 32, "C13.9"),
    Grammar("generation", "[0-9a-f]{32}", "[0-9a-f]", 32, "C13.2-25", shortest=32),
    Grammar("base32", "[a-z2-7]{26}", "[a-z2-7]", 26, "D4", shortest=26),
    Grammar("hash", "[a-z0-9]{1,32}", "[a-z0-9]", 32, "13.9"),
    Grammar("hex", "[0-9a-f]{64}", "[0-9a-f]", 64, "D5", shortest=64),
    _number("number", "C13.2-13"),
    _number("slot", "CD-11", HISTORY_READER_SLOTS - 1),
    _words("half", ("spec", "status"), "13.7"),
    _words("fact_leaf", ("bind", "result"), "13.2"),
    _words("direction", ("in", "out"), "13.2"),
    Grammar("topic", rf"{_WORD}+(?:\.{_WORD}+)*", "[A-Za-z0-9_.-]", 512, "13.2", dotted=True),
    Grammar("epoch_token", "[0-9A-Za-z]+", "[0-9A-Za-z]", MAX_TOKEN, "D5"),
    Grammar("meta_name", "[A-Za-z0-9_-]+=*", "[A-Za-z0-9_=-]", MAX_NAME, "C8-22"),
    Grammar("stream", f"{_WORD}+", _WORD, MAX_NAME, "C8"),
    Grammar("consumer", f"{_WORD}+", _WORD, MAX_NAME, "C8-27"),
    Grammar("bucket", f"{_WORD}+", _WORD, MAX_NAME, "C8-69"),
    Grammar(
        "key",
        r"[A-Za-z0-9_/=-]+(?:\.[A-Za-z0-9_/=-]+)*",
        "[A-Za-z0-9_/=.-]",
        MAX_SUBJECT,
        "D3",
        dotted=True,
        pattern=r"(?:(?:[A-Za-z0-9_/=-]+|\*)\.)*(?:[A-Za-z0-9_/=-]+|\*|>)",
    ),
    Grammar(
        # What a consumer filters on, or one stored subject that is asked for: any concrete subject or pattern.
        "filter",
        rf"(?:(?:{_ANY_TOKEN}|\*)\.)*(?:{_ANY_TOKEN}|\*|>)",
        r"[^\s]",
        MAX_SUBJECT,
        "C8-28",
        dotted=True,
    ),
    Grammar("account", "A[A-Z2-7]{55}", "[A-Z2-7]", 56, "C9", shortest=56),
    Grammar("server", "N[A-Z2-7]{55}", "[A-Z2-7]", 56, "C9", shortest=56),
)

GRAMMARS: dict[str, Grammar] = {grammar.name: grammar for grammar in _GRAMMARS}

REPLAY_WINDOW = Grammar("replay window", r"[0-9]+[smhd]", "[0-9smhd]", 16, "D5", shortest=2)
ARTIFACT_DIGEST = Grammar("artifact digest", "sha256:[0-9a-f]{64}", "[0-9a-fsh:]", 71, "D5", shortest=71)
EXTENSION_KIND = Grammar("extension kind", r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+", "[A-Za-z0-9.-]", 255, "D5")
ENDPOINT_NAME = Grammar("endpoint name", rf"{_LABEL}(?:\.{_LABEL})*", "[a-z0-9.-]", MAX_TOKEN, "C13.2-01")

_OUTSIDE = re.compile(r"[^A-Za-z0-9_-]")
# What ECMAScript's trim removes: str.strip() knows another set (it keeps U+FEFF and removes U+001C..1F and U+0085).
_EDGE = "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
_EDGE += "\u2028\u2029\u202f\u205f\u3000\ufeff"


def _units(text: str) -> int:
    """Length in UTF-16 code units: an astral character counts twice (OPEN C3-a, C3-d)."""
    return len(text) + sum(character > "\uffff" for character in text)


def sanitize(text: str) -> str:
    """A routing token from free text: trimmed, every other character an underscore, never empty (C3-02, OPEN C3-a)."""
    if len(text) > MAX_CHANNEL:
        raise InvalidName("routing token", f"{len(text)} characters, allowed are {MAX_CHANNEL}", "C3-15")
    return _OUTSIDE.sub(lambda found: "__" if found[0] > "\uffff" else "_", text.strip(_EDGE)) or "_"


def space_token(name: str) -> str:
    """The token of a space from the name that an operator typed (C3-02); InvalidName above 64 characters."""
    return GRAMMARS["space"].check(sanitize(name))


def publish_channel(text: object) -> str:
    """The concrete channel of a post: segments sanitized, wildcards and empty segments refused (C3-11..15)."""
    segments = _segments(text)
    for segment in segments:
        if segment in (WILDCARD, TAIL):
            raise InvalidName("channel", "a publish goes to a concrete channel", "C3-13")
    return GRAMMARS["channel"].check(".".join(map(sanitize, segments)))


def subscribe_channel(text: object) -> str:
    """The channel pattern that a person joins: wildcards as whole segments, ``>`` last (C3-12, C3-14)."""
    segments = [one if one in (WILDCARD, TAIL) else sanitize(one) for one in _segments(text)]
    return GRAMMARS["channel"].check_pattern(".".join(segments))


def policy_channel(text: object) -> str:
    """An entry of a subscribe, allow or join list: refused if it is not spelled as it is stored (OPEN C3-c)."""
    return GRAMMARS["channel"].check_pattern(text)


def _segments(text: object) -> list[str]:
    if not isinstance(text, str):
        raise InvalidName("channel", f"{excerpt(text)} is not text", "C3-11")
    if len(text) > MAX_CHANNEL or _units(text) > MAX_CHANNEL:
        raise InvalidName("channel", f"{len(text)} characters, allowed are {MAX_CHANNEL}", "C3-15")
    segments = text.split(".")
    if "" in segments:
        raise InvalidName("channel", "it has an empty segment", "OPEN C3-c")
    return segments


def endpoint_token(name: str) -> str:
    """The wire token of an endpoint name: every dot an underscore, which a name never holds (C13.2-01, -04)."""
    return ENDPOINT_NAME.check(name).replace(".", "_")


def endpoint_name(token: str) -> str:
    """The endpoint name of a wire token, the exact inverse (C13.2-04)."""
    return GRAMMARS["endpoint"].check(token).replace("_", ".")


def epoch_token(created: str) -> str:
    """The epoch of a stream: its creation time as STREAM.INFO says it, without what is no letter or digit (D5)."""
    return GRAMMARS["epoch_token"].check(re.sub("[^0-9A-Za-z]", "", created[:MAX_NAME]))
