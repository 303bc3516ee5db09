"""TLV bodies as classes: the fields of a message are its attributes (E-01..E-14, P3-12, P7-05).

::

    class Subscribed(Frame, type=FrameType.SUBSCRIBED):
        request_id: Field[int] = field(1, REQUEST_ID)
        subscription_id: Field[SubscriptionId] = field(2, ID16)
        next_delivery_sequence: Field[DeliverySequence] = field(3, COUNTER)

A body comes to be in two ways. ``decode`` walks received bytes once; everything that can be wrong is found there, and
a plain value is made only when it is first read. The constructor takes values by name, checked by mypy and at run
time, and encodes them at once. A body never changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NoReturn, Self, TypeVar, dataclass_transform, overload

from cext.tlv import Fields, Schema, TlvError, Writer
from sidecar.coordinator.wire.codecs import Codec
from sidecar.coordinator.wire.enums import FrameType
from sidecar.coordinator.wire.errors import FrameTooLargeError, LocalProtocolError, MalformedMessage, ProtocolError
from sidecar.coordinator.wire.limits import HARD
from sidecar.coordinator.wire.table import FRAME_TABLE, FrameRow

T = TypeVar("T")

_HEADER = struct.Struct(">IB")

FRAMES: dict[int, type[Frame]] = {}
"""Class of each type; the classes of ``frames`` put themselves here."""

_REQUIRED: Final = object()


class Field(Generic[T]):
    """One top-level field: id, image and, when it may be absent, the value that absence means (E-11, E-12).

    It is a non-data descriptor: the first read of a decoded body makes the value and leaves it in the instance, where
    later reads find it without coming here.
    """

    __slots__ = ("codec", "default", "id", "name")

    def __init__(self, field_id: int, codec: Codec[Any], default: object) -> None:
        self.id = field_id
        self.codec = codec
        self.default = default
        self.name = ""

    @property
    def required(self) -> bool:
        """Whether a body without this field is malformed (E-13)."""
        return self.default is _REQUIRED

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, body: None, owner: Any) -> Self: ...
    @overload
    def __get__(self, body: Body, owner: Any) -> T: ...
    def __get__(self, body: Body | None, owner: Any) -> Any:
        if body is None:
            return self
        fields = body.fields
        value = self.codec.take(fields, self.id) if fields.has(self.id) else self.default
        body.__dict__[self.name] = value
        return value

    if TYPE_CHECKING:
        # Tells the type checker what the constructor takes; assignment is refused (frozen).
        def __set__(self, body: Body, value: T) -> None: ...


@overload
def field(field_id: int, codec: Codec[T]) -> Field[T]: ...
@overload
def field(field_id: int, codec: Codec[T], *, default: None) -> Field[T | None]: ...
@overload
def field(field_id: int, codec: Codec[T], *, default: T) -> Field[T]: ...
def field(field_id: int, codec: Codec[Any], *, default: object = _REQUIRED) -> Field[Any]:
    """Declare a field. With ``default`` it is optional, absent when equal to it, and read as it when absent (E-12)."""
    return Field(field_id, codec, default)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Body:
    """Base of everything whose image is a run of TLV fields."""

    TITLE: ClassVar[str] = ""
    """What errors and documentation call it."""
    FIELDS: ClassVar[tuple[Field[Any], ...]] = ()
    STRICT: ClassVar[bool] = False
    """Whether unknown and out-of-order fields are malformed, too (E-25)."""
    SCHEMA: ClassVar[Schema]
    _unfinished: ClassVar[tuple[Field[Any], ...]] = ()

    def __init_subclass__(cls, *, title: str = "", strict: bool = False) -> None:
        own = [value for value in vars(cls).values() if isinstance(value, Field)]
        cls.TITLE = title or cls.__name__
        cls.STRICT = strict
        cls.FIELDS = (*cls.FIELDS, *own)
        cls._unfinished = tuple(item for item in cls.FIELDS if not item.codec.checked)
        cls.SCHEMA = Schema(
            [(item.id, item.codec.kind, item.codec.lo, item.codec.hi, item.required) for item in cls.FIELDS],
            strict=strict,
        )

    def __init__(self, **values: object) -> None:
        """Build a body from values by field name; raises ``LocalProtocolError`` when one is missing or illegal."""
        own = self.__dict__
        own["_fields"] = None
        for item in self.FIELDS:
            value = values.pop(item.name, item.default)
            if value is _REQUIRED:
                raise LocalProtocolError(f"{self.TITLE}: {item.name} is missing")
            own[item.name] = value
        if values:
            raise LocalProtocolError(f"{self.TITLE} has no field {next(iter(values))}")
        own["_body"] = self._encode()
        if problem := self.fault():
            raise LocalProtocolError(f"{self.TITLE}: {problem}")

    @classmethod
    def build(cls, values: Mapping[str, Any]) -> Self:
        """The constructor for values that are not known by name when the code is written."""
        made: Callable[..., Self] = cls
        return made(**values)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """The body whose image is exactly ``data``; raises ``MalformedMessage`` (P3-12).

        ``data`` is referenced, not copied: it must not change while the body is in use.
        """
        try:
            fields = cls.SCHEMA.scan(data)
        except TlvError as error:
            cls._refuse(error)
        self = cls.__new__(cls)
        own = self.__dict__
        own["_fields"] = fields
        own["_body"] = None
        try:
            self._finish(fields)
        except TlvError as error:
            raise cls._correlated(fields, error.reason) from None
        except MalformedMessage as error:
            raise cls._correlated(fields, error.message) from None
        return self

    def _finish(self, fields: Fields) -> None:
        """Check what the scan could not: nested images, closed enums, ranges, and what holds between fields."""
        own = self.__dict__
        for item in self._unfinished:
            if fields.has(item.id):
                own[item.name] = item.codec.take(fields, item.id)
        if problem := self.fault():
            raise MalformedMessage(problem)

    def fault(self) -> str | None:
        """What is wrong between the fields; ``None`` when nothing is."""
        return None

    @property
    def fields(self) -> Fields:
        """Offset table over the image."""
        own = self.__dict__
        table: Fields | None = own["_fields"]
        if table is None:
            table = own["_fields"] = self.SCHEMA.scan(self.body())
        return table

    def body(self) -> bytes:
        """Canonical image: every field once, ids increasing, unknown ones included (E-07, P8-07, P8-08)."""
        own = self.__dict__
        image: bytes | None = own["_body"]
        if image is None:
            image = own["_body"] = self.fields.canonical()
        return image

    def raw(self, name: str) -> bytes:
        """Image of the value of one field as it came; ``LocalProtocolError`` when it is absent."""
        item = getattr(type(self), name)
        try:
            return self.fields.raw(item.id)
        except TlvError:
            raise LocalProtocolError(f"{self.TITLE} has no {name}") from None

    def unknown(self) -> bytes:
        """Fields that this version does not know, whole, in increasing id order (E-06, P8-07)."""
        return self.fields.unknown()

    def _encode(self) -> bytes:
        out, scratch = Writer(), Writer()
        for item in self.FIELDS:
            value = self.__dict__[item.name]
            if value is item.default or value == item.default:
                continue
            try:
                item.codec.write(scratch, value)
                out.field_raw(item.id, scratch.take())
            except (ValueError, OverflowError, TypeError, AttributeError) as error:
                detail = error if isinstance(error, LocalProtocolError) else type(error).__name__
                raise LocalProtocolError(f"{self.TITLE}: {item.name}: {detail}") from None
        return out.take()

    @classmethod
    def _refuse(cls, error: TlvError) -> NoReturn:
        name = next((f" {item.name}" for item in cls.FIELDS if item.id == error.field), "")
        where = f"field {error.field}{name}: " if error.field else ""
        raise cls._scan_error(error)(f"{cls.TITLE}: {where}{error.reason}") from None

    @classmethod
    def _scan_error(cls, error: TlvError) -> type[ProtocolError]:
        return MalformedMessage

    @classmethod
    def _correlated(cls, fields: Fields, problem: str) -> MalformedMessage:
        first = cls.FIELDS[0]
        known = first.name == "request_id" and fields.has(first.id)
        return MalformedMessage(f"{cls.TITLE}: {problem}", request_id=fields.u32(first.id) if known else None)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} never changes")

    def __eq__(self, other: object) -> bool:
        """Same kind of body, same canonical image."""
        if not isinstance(other, Body):
            return NotImplemented
        return type(self) is type(other) and self.body() == other.body()

    def __hash__(self) -> int:
        return hash((type(self), self.body()))

    def __repr__(self) -> str:
        """Title and size only: payloads, proofs and tokens stay out of logs."""
        return f"<{self.TITLE} {len(self.body())} bytes>"


class Frame(Body):
    """Base of the frames; ``ROW`` says who may send it when, and how large."""

    TYPE: ClassVar[FrameType]
    ROW: ClassVar[FrameRow]

    def __init_subclass__(cls, *, type: FrameType, strict: bool = False) -> None:
        super().__init_subclass__(title=type.name, strict=strict)
        cls.TYPE = type
        cls.ROW = FRAME_TABLE[type]
        FRAMES[type] = cls

    def encode(self) -> bytes:
        """The whole message; ``LocalProtocolError`` when it is above the hard frame cap."""
        body = self.body()
        if len(body) + 1 > HARD.frame:
            raise LocalProtocolError(f"{self.TITLE} is longer than a frame may be")
        return _HEADER.pack(len(body) + 1, self.TYPE) + body

    @classmethod
    def typed_payload(cls) -> Field[Any] | None:
        """The field that the typed-payload cap bounds (P3-09), in the frames that have one."""
        if cls.ROW.cap != "T":
            return None
        return next(item for item in cls.FIELDS if item.name == "payload")

    @classmethod
    def _scan_error(cls, error: TlvError) -> type[ProtocolError]:
        bounded = cls.typed_payload()
        oversize = bounded is not None and error.reason == "cap" and error.field == bounded.id
        return FrameTooLargeError if oversize else MalformedMessage
