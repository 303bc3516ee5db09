"""The one error of this package: a text that is not the name it should be."""

from __future__ import annotations

_SHOWN = 40


def excerpt(value: object) -> str:
    """The first characters of a value, printable and bounded, for a message that a person reads."""
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    short = ascii(value[:_SHOWN])
    if len(value) <= _SHOWN and len(short) <= 2 * _SHOWN:
        return short
    return f"{short[: 2 * _SHOWN]}... ({len(value)} characters)"


class InvalidName(ValueError):  # noqa: N818 - the field's word; it names what was refused
    """A token, subject, key or durable name that its grammar refuses. Nothing is ever rewritten to fit (C2-08).

    ``what`` is the grammar or template that refused, ``reason`` says why, ``row`` is the requirement.
    """

    def __init__(self, what: str, reason: str, row: str = "") -> None:
        self.what, self.reason, self.row = what, reason, row
        super().__init__(f"{what}: {reason}" + (f" ({row})" if row else ""))
