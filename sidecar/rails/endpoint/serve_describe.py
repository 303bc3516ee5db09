"""What an instance tells of itself: its descriptor, and of that only what the caller may call (C13.7-65..68).

The caller is the one of the subject; what it may call is read at each request. Nothing is inferred from the fact that
a caller could ask (C13.7-69), and without a fresh view nothing is told.
"""

from __future__ import annotations

from dataclasses import replace

from sidecar.rails.endpoint.clusters import Surface
from sidecar.rails.endpoint.descriptor import Descriptor
from sidecar.rails.endpoint.envelope import encode_data
from sidecar.rails.endpoint.view import View
from sidecar.rails.names.principals import Lifecycle


class Described:
    """The descriptor of one endpoint. Without a ``view`` it is public: shown whole to everybody (C13.7-68)."""

    def __init__(
        self, surface: Surface, endpoint: str, owner: str, *, endpoint_type: str | None = None, view: View | None = None
    ) -> None:
        """``endpoint`` is the dotted name, ``owner`` who registered it."""
        self._surface, self._endpoint, self._owner, self._type = surface, endpoint, owner, endpoint_type
        self._view = view

    @property
    def public(self) -> bool:
        return self._view is None

    async def answer(self, caller: Lifecycle, generation: str | None, identity: str, limit: int) -> bytes:
        """The answer for one caller, in at most ``limit`` bytes if leaving the documents out can bring it there. Raises
        Unavailable when the view is missing or too old (C13.7-67)."""
        held = None if self._view is None else await self._view.held(caller, generation)
        data = encode_data(identity, self.descriptor(held).value())
        return data if len(data) <= limit else encode_data(identity, self.descriptor(held, inline=False).value())

    def descriptor(self, held: frozenset[str] | None, *, inline: bool = True) -> Descriptor:
        """The descriptor within what is held; None holds everything. ``inline``: with the documents of clusters."""
        found = Descriptor.of(self._surface, self._endpoint, self._owner, held=held, endpoint_type=self._type)
        if inline:
            return found
        return replace(found, clusters=tuple(replace(one, document=None) for one in found.clusters))
