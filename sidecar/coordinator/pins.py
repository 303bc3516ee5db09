"""The pin file of a client: one owner-only JSON document, keyed by authority fingerprint (W2-06..09, P12-25..30).

Every change reads the file again under the lock of its directory, so that several clients share one file and the
highest activation that any of them saw holds for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from sidecar.base.ed25519 import digest_text, parse_digest_text
from sidecar.base.safefile import DirLock, UnsafeFile, ensure_private_dir, read_private, write_private
from sidecar.coordinator.client_trust import Pin, Pins, Quarantine, Standing

PIN_FILE_BYTES: Final = 4 * 1_048_576
_VERSION: Final = 1


class PinFile(Pins):
    """Pins that survive the process.

    The directory is created owner-only when it is missing; a missing file is an empty set of pins. Raises
    ``UnsafeFile`` for a file that others may read or write, or whose content is not a pin document: such a file is
    never overwritten.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.reload()

    @property
    def path(self) -> Path:
        """Where the pins are kept."""
        return self._path

    def reload(self) -> None:
        """Read the file again."""
        try:
            data = read_private(self._path, PIN_FILE_BYTES)
        except FileNotFoundError:
            self._pins, self._approved = {}, set()
            return
        try:
            self._pins, self._approved = _parse(data)
        except (ValueError, KeyError, TypeError) as error:
            raise UnsafeFile(self._path, "is not a valid pin file; repair it or move it away") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        ensure_private_dir(self._path.parent)
        with DirLock(self._path.parent) as lock:
            self.reload()
            before = (dict(self._pins), set(self._approved))
            try:
                yield
            finally:  # a quarantine is recorded although the admission fails
                if before != (self._pins, self._approved):
                    write_private(self._path, self._image(), lock=lock)

    def _image(self) -> bytes:
        document = {
            "version": _VERSION,
            "authorities": {digest_text(pin.fingerprint): _pin_document(pin) for pin in self.pins},
            "approved": [digest_text(fingerprint) for fingerprint in sorted(self._approved)],
        }
        return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _pin_document(pin: Pin) -> dict[str, Any]:
    return {
        "coordinator_id": pin.coordinator_id.hex(),
        "witness_id": pin.witness_id.hex(),
        "witness_key": pin.witness_key.hex(),
        "seen": _standing_document(pin.seen),
        "current": _standing_document(pin.current),
        "fenced": pin.fenced,
        "quarantine": None
        if pin.quarantine is None
        else {"held": _standing_document(pin.quarantine.held), "offered": _standing_document(pin.quarantine.offered)},
    }


def _standing_document(standing: Standing) -> dict[str, Any]:
    return {
        "epoch": standing.epoch,
        "activation": standing.activation,
        "incarnation": standing.incarnation.hex(),
        "token_sha256": digest_text(standing.token_sha256),
    }


def _parse(data: bytes) -> tuple[dict[bytes, Pin], set[bytes]]:
    document = orjson.loads(data)
    if not isinstance(document, dict) or set(document) != {"version", "authorities", "approved"}:
        raise ValueError("unknown shape")
    if document["version"] != _VERSION:
        raise ValueError("unknown version")
    pins = [_parse_pin(parse_digest_text(text), entry) for text, entry in document["authorities"].items()]
    return {pin.fingerprint: pin for pin in pins}, {parse_digest_text(text) for text in document["approved"]}


def _parse_pin(fingerprint: bytes, entry: Mapping[str, Any]) -> Pin:
    quarantine = entry["quarantine"]
    return Pin(
        fingerprint,
        _hex(entry["coordinator_id"], 16),
        _hex(entry["witness_id"], 16),
        _hex(entry["witness_key"], 32),
        _parse_standing(entry["seen"]),
        _parse_standing(entry["current"]),
        _boolean(entry["fenced"]),
        None
        if quarantine is None
        else Quarantine(_parse_standing(quarantine["held"]), _parse_standing(quarantine["offered"])),
    )


def _parse_standing(entry: Mapping[str, Any]) -> Standing:
    return Standing(
        _counter(entry["epoch"]),
        _counter(entry["activation"]),
        _hex(entry["incarnation"], 16),
        parse_digest_text(entry["token_sha256"]),
    )


def _hex(text: str, size: int) -> bytes:
    value = bytes.fromhex(text)
    if len(value) != size or value.hex() != text:
        raise ValueError("wrong width")
    return value


def _counter(value: object) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("not a counter")
    return value


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise ValueError("not a boolean")
    return value
