"""A name template, and the four forms that are derived from its text: build, split, parse, filter.

A template is written as the specification writes it: literals, ``<field>`` for one value, ``<field...>`` for a value
of several tokens, ``<field:grammar>`` when the field is not called like its grammar. ``split`` only takes a text
apart; ``parse`` also judges every part (C3-08, C3-09). ``filter`` and ``subtree`` give subscribe and permission
patterns; ``build`` never gives one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from sidecar.rails.names.errors import InvalidName, excerpt
from sidecar.rails.names.limits import MAX_KEY, MAX_NAME, MAX_SUBJECT
from sidecar.rails.names.tokens import GRAMMARS, TAIL, WILDCARD, Grammar


class Kind(StrEnum):
    """What a template names; the kind bounds its length."""

    SUBJECT = "subject"
    STREAM = "stream"
    BUCKET = "bucket"
    KEY = "key"
    CONSUMER = "consumer"
    INBOX = "inbox"
    API = "api"
    SERIAL = "serialization"
    QUEUE = "queue"


_LONGEST = {
    Kind.SUBJECT: MAX_SUBJECT,
    Kind.STREAM: MAX_NAME,
    Kind.BUCKET: MAX_NAME,
    Kind.KEY: MAX_KEY,
    Kind.CONSUMER: MAX_NAME,
    Kind.INBOX: MAX_NAME,
    Kind.API: MAX_SUBJECT,
    Kind.SERIAL: MAX_NAME,
    Kind.QUEUE: MAX_NAME,
}
_FIELD = re.compile(r"<([a-z0-9_]+)(\.\.\.)?(?::([a-z0-9_]+))?>")


@dataclass(frozen=True, slots=True)
class Field:
    """One placeholder: its name in ``build`` and ``split``, its grammar, and whether it may span tokens."""

    name: str
    grammar: Grammar
    tail: bool


@dataclass(frozen=True, slots=True)
class Part:
    """One dot-separated piece of a template: the text around its fields, one longer than the fields are."""

    literals: tuple[str, ...]
    fields: tuple[Field, ...]

    @property
    def alone(self) -> bool:
        """Whether the piece is one field and nothing else."""
        return len(self.fields) == 1 and self.literals == ("", "")


def _parts(text: str) -> tuple[Part, ...]:
    parts = []
    # The dots of "..." inside a placeholder separate nothing.
    for piece in re.split(r"\.(?![^<]*>)", text):
        literals, fields, end = [], [], 0
        for found in _FIELD.finditer(piece):
            literals.append(piece[end : found.start()])
            name, tail, grammar = found.groups()
            fields.append(Field(name, GRAMMARS[grammar or name], tail is not None))
            end = found.end()
        parts.append(Part((*literals, piece[end:]), tuple(fields)))
    return tuple(parts)


def _expression(parts: tuple[Part, ...]) -> re.Pattern[str]:
    """The split form. A field that has its token for itself takes whatever stands there (C3-08)."""
    pieces = []
    for part in parts:
        if part.alone:
            (one,) = part.fields
            pieces.append(rf"(?P<{one.name}>[^.]+(?:\.[^.]+)*)" if one.tail else rf"(?P<{one.name}>[^.]+)")
            continue
        piece = re.escape(part.literals[0])
        for one, literal in zip(part.fields, part.literals[1:], strict=True):
            piece += f"(?P<{one.name}>{one.grammar.alphabet}+)" + re.escape(literal)
        pieces.append(piece)
    return re.compile(r"\.".join(pieces), re.DOTALL)


@dataclass(frozen=True, eq=False)
class Template:
    """One row of the name table. ``row`` is the requirement, ``use`` one line of meaning.

    ``whole`` names are compared whole and never taken apart (C13.2-06): ``split`` and ``parse`` refuse.
    ``longest`` bounds the built text; it is the kind's bound unless the specification has a smaller one.
    """

    kind: Kind
    name: str
    text: str
    row: str
    use: str
    longest: int = 0
    whole: bool = False
    parts: tuple[Part, ...] = field(init=False, repr=False)
    fields: Mapping[str, Field] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if set("<>*{}") & set(_FIELD.sub("", self.text)):
            raise ValueError(f"{self.name}: no placeholder can be read from {self.text}")
        object.__setattr__(self, "longest", self.longest or _LONGEST[self.kind])
        object.__setattr__(self, "parts", _parts(self.text))
        if any(part.alone and part.fields[0].tail for part in self.parts[:-1]):
            raise ValueError(f"{self.name}: a value of several tokens stands last, or next to a literal")
        object.__setattr__(self, "fields", {one.name: one for part in self.parts for one in part.fields})

    @cached_property
    def _form(self) -> str:
        """The text with its fields as ``str.format`` knows them; no literal has a brace."""
        return _FIELD.sub(r"{\1}", self.text)

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        return _expression(self.parts)

    def build(self, **values: str | int) -> str:
        """The concrete name. InvalidName for a value that its grammar refuses, or above ``longest``; TypeError for a
        missing or unknown field. The result holds no wildcard, except inside a ``filter`` field."""
        if values.keys() != self.fields.keys():
            self._known(values)
            raise TypeError(f"{self.name} needs {', '.join(sorted(self.fields.keys() - values.keys()))}")
        checked = self._checked(values)
        return self._bounded(self._form.format_map(checked))

    def split(self, text: object) -> dict[str, str]:
        """The fields of a text by position alone; InvalidName if literals or arity differ. Judges no value."""
        if self.whole:
            raise InvalidName(self.name, "names of this kind are compared whole", "C13.2-06")
        if not isinstance(text, str):
            raise InvalidName(self.name, f"{excerpt(text)} is not text", self.row)
        if len(text) > self.longest:
            raise InvalidName(self.name, f"{len(text)} characters, allowed are {self.longest}", self.row)
        found = self._regex.fullmatch(text)
        if found is None:
            raise InvalidName(self.name, f"{excerpt(text)} has another form", self.row)
        return found.groupdict()

    def parse(self, text: object) -> dict[str, str]:
        """``split``, and every value fits its grammar; ``build(**parse(text)) == text``."""
        values = self.split(text)
        self._checked(values)
        return values

    def fits(self, text: object) -> bool:
        """Whether ``parse`` takes the text."""
        try:
            self.parse(text)
        except InvalidName:
            return False
        return True

    def filter(self, **given: str | int) -> str:
        """The pattern of exactly this arity: an absent field is ``*``, an absent last field of several tokens ``>``.
        A given value may itself be a pattern where its grammar knows one (a channel, a role)."""
        return self._bounded(".".join(self._pieces(given)))

    def subtree(self, **given: str | int) -> str:
        """The pattern of everything below what is given: the absent fields at the end become one ``>``, absent fields
        before them ``*``. With every field given, everything below the concrete name."""
        pieces = list(self._pieces(given))
        last = max((at for at, part in enumerate(self.parts) if not self._absent(part, given)), default=-1)
        if last >= 0 and pieces[last].endswith(TAIL):
            raise InvalidName(self.name, "nothing is below a pattern that ends in '>'", self.row)
        return self._bounded(".".join([*pieces[: last + 1], TAIL]))

    def _pieces(self, given: Mapping[str, str | int]) -> Iterator[str]:
        self._known(given)
        checked = self._checked(given, pattern=True)
        for part in self.parts:
            if self._absent(part, given):
                yield TAIL if part.fields[0].tail else WILDCARD
            else:
                yield _joined(part, checked)

    def _absent(self, part: Part, given: Mapping[str, str | int]) -> bool:
        """Whether the piece is a field that was left out; a piece that shares its token must be given whole."""
        missing = [one.name for one in part.fields if one.name not in given]
        if missing and not part.alone:
            raise TypeError(f"{self.name} needs {', '.join(missing)}")
        return bool(missing)

    def _checked(self, values: Mapping[str, object], *, pattern: bool = False) -> dict[str, str]:
        checked = {}
        for name, value in values.items():
            grammar = self.fields[name].grammar
            try:
                checked[name] = grammar.check_pattern(value) if pattern else grammar.check(value)
            except InvalidName as error:
                raise InvalidName(f"{self.name}, {name}", error.reason, error.row) from None
        return checked

    def _known(self, values: Mapping[str, Any]) -> None:
        unknown = values.keys() - self.fields.keys()
        if unknown:
            raise TypeError(f"{self.name} has no {', '.join(sorted(unknown))}")

    def _bounded(self, text: str) -> str:
        if len(text) > self.longest:
            raise InvalidName(self.name, f"{len(text)} characters, allowed are {self.longest}", self.row)
        return text


def _joined(part: Part, values: Mapping[str, str]) -> str:
    text = part.literals[0]
    for one, literal in zip(part.fields, part.literals[1:], strict=True):
        text += values[one.name] + literal
    return text


def listed(namespace: Mapping[str, object]) -> tuple[Template, ...]:
    """Every template of a module, in the order of its text."""
    return tuple(value for value in namespace.values() if isinstance(value, Template))
