"""Why an envelope is refused: the field and a fixed sentence, never any of what the envelope says."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One thing that is wrong. ``field`` is a path such as ``parts[2].digest``, empty for the whole document."""

    field: str
    why: str

    def under(self, name: str) -> Fault:
        """The same fault, seen from the container whose member ``name`` it is in."""
        if not self.field:
            return Fault(name, self.why)
        return Fault(name + self.field if self.field.startswith("[") else f"{name}.{self.field}", self.why)


class EnvelopeError(ValueError):
    """A document that does not have its shape, or that a publisher must not send.

    ``field`` and ``why`` are bounded and hold no content; the names of a data part's members may stand in ``field``.
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field or 'the document'} {why}")
        self.field = field
        self.why = why


class TooLarge(EnvelopeError):  # noqa: N818 - it says what the envelope is
    """An envelope that does not fit into the broker's ``max_payload`` (C5-19), or into what receivers can be given."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            "",
            f"is {size} bytes where {limit} can be delivered: move what is large out and name it by an artifact part",
        )
        self.size = size
        self.limit = limit
