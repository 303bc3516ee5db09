"""Positional records and unions: bytes whose columns stand one after another (E-21, E-23, P3-61).

A record is a frozen class whose annotations are its table of columns::

    @record
    class ObjectRef(Record):
        kind: Annotated[ObjectKind, member(2, ObjectKind)]
        id: Annotated[ObjectId, ID16]

Reading, writing, widths and documentation follow from the columns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from cext.tlv import FIXED, RAW, Cursor, Fields, Writer
from sidecar.coordinator.wire.codecs import Codec, decode_image, encode_image
from sidecar.coordinator.wire.errors import LocalProtocolError, MalformedMessage
from sidecar.coordinator.wire.ids import ID_SIZE
from sidecar.coordinator.wire.limits import HARD

R = TypeVar("R", bound="Record")


class Record:
    """Base of positional records."""

    __slots__ = ()

    TAG: ClassVar[int | None] = None
    """Leading u8 tag of a member of a union."""
    LEAD: ClassVar[bytes] = b""
    """Constant bytes in front of the columns."""
    COLUMNS: ClassVar[tuple[tuple[str, Codec[Any]], ...]] = ()
    _plan: ClassVar[tuple[tuple[Callable[[Any, Any], None], Callable[[Cursor], Any]], ...]] = ()
    """Per slot how to set it and what to set it to: a frozen class is filled without its slow constructor."""
    CODEC: ClassVar[Codec[Any]]
    """Codec of the whole record, tag included."""

    def fault(self) -> str | None:
        """What is wrong between the columns; ``None`` when nothing is."""
        return None

    @classmethod
    def read(cls, cursor: Cursor) -> Self:
        """The record at the cursor; raises ``MalformedMessage`` or ``TlvError``."""
        if cls.TAG is not None and cursor.u8() != cls.TAG:
            raise MalformedMessage(f"{cls.__name__}: another tag")
        return cls.read_columns(cursor)

    @classmethod
    def read_columns(cls, cursor: Cursor) -> Self:
        """The record at the cursor, behind its tag."""
        if cls.LEAD and cursor.take(len(cls.LEAD)) != cls.LEAD:
            raise MalformedMessage(f"{cls.__name__}: another constant in front")
        made = cls.__new__(cls)
        for put, read in cls._plan:
            put(made, read(cursor))
        if problem := made.fault():
            raise MalformedMessage(f"{cls.__name__}: {problem}")
        return made

    def write(self, out: Writer) -> None:
        """Append the image; raises ``LocalProtocolError`` when a value does not fit its column."""
        if problem := self.fault():
            raise LocalProtocolError(f"{type(self).__name__}: {problem}")
        if self.TAG is not None:
            out.u8(self.TAG)
        out.raw(self.LEAD)
        for name, codec in self.COLUMNS:
            codec.write(out, getattr(self, name))

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Self:
        """The record whose image is exactly ``data``; raises ``MalformedMessage``."""
        return cast(Self, decode_image(cls.CODEC, data))

    def encode(self) -> bytes:
        """The image; raises ``LocalProtocolError``."""
        return encode_image(self.CODEC, self)

    def __repr__(self) -> str:
        """Numbers and ids only: tokens, nonces, proofs, documents and messages stay out of logs."""
        shown = []
        for name, _ in self.COLUMNS:
            value = getattr(self, name)
            if isinstance(value, int | Record):
                shown.append(f"{name}={value!r}")
            elif isinstance(value, bytes) and len(value) == ID_SIZE:
                shown.append(f"{name}={value.hex()}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[R]) -> type[R]:
    """Make a frozen slotted record of ``cls``: its annotated columns are read and written in the order shown."""
    made = dataclass(frozen=True, slots=True, repr=False)(cls)
    hints = get_type_hints(made, include_extras=True)
    columns, plan = [], []
    for column in fields(cast(Any, made)):
        hint = hints[column.name]
        put = getattr(made, column.name).__set__
        if get_origin(hint) is Annotated:
            codec = get_args(hint)[1]
            columns.append((column.name, codec))
            plan.append((put, codec.read))
        else:
            plan.append((put, _constant(column.default)))
    made.COLUMNS = tuple(columns)
    made._plan = tuple(plan)
    lead = len(made.LEAD) + (made.TAG is not None)
    low = lead + sum(codec.width[0] for _, codec in columns)
    high = min(lead + sum(codec.width[1] for _, codec in columns), HARD.frame)
    made.CODEC = Codec(
        made.__name__,
        FIXED if low == high else RAW,
        low,
        high,
        made.read,
        _writer(made),
        _take(made),
        False,
        made,
    )
    return made


def _constant(value: object) -> Callable[[Cursor], object]:
    return lambda cursor: value


def _writer(made: type[R]) -> Callable[[Writer, R], None]:
    def write(out: Writer, value: R) -> None:
        if not isinstance(value, made):
            raise LocalProtocolError(f"{made.__name__} expected, not {type(value).__name__}")
        value.write(out)

    return write


def _take(made: type[R]) -> Callable[[Fields, int], R]:
    def take(values: Fields, field_id: int) -> R:
        cursor = Cursor(values.view(field_id))
        value = made.read(cursor)
        cursor.finish()
        return value

    return take


def nested(kind: type[R]) -> Codec[R]:
    """Codec of a record inside another image or in a field of its own."""
    return kind.CODEC


def remembered(kind: type[R], images: int) -> Codec[R]:
    """Like :func:`nested`, keeping the last ``images`` decoded images: for records that every request repeats."""
    decode = functools.lru_cache(images)(kind.decode)
    codec = kind.CODEC

    def take(values: Fields, field_id: int) -> R:
        return decode(values.raw(field_id))

    return replace(codec, take=take)


def union(name: str, *members: type[Record]) -> Codec[Any]:
    """Tagged union of records: ``u8 tag``, then the columns of that member (E-21)."""
    by_tag = {cast(int, kind.TAG): kind for kind in members}

    def read(cursor: Cursor) -> Record:
        tag = cursor.u8()
        kind = by_tag.get(tag)
        if kind is None:
            raise MalformedMessage(f"{name}: tag {tag} is not allocated")
        return kind.read_columns(cursor)

    def write(out: Writer, value: Record) -> None:
        if not isinstance(value, members):
            raise LocalProtocolError(f"{name}: {type(value).__name__} is not a member")
        value.write(out)

    def take(values: Fields, field_id: int) -> Any:
        return decode_image(codec, values.view(field_id))

    low = min(kind.CODEC.lo for kind in members)
    high = max(kind.CODEC.hi for kind in members)
    codec: Codec[Any] = Codec(name, RAW, low, high, read, write, take, False, by_tag)
    return codec
