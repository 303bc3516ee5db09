"""On-demand reads of a mediated space: pages that the delivery plane gives (C9-47).

A page names the key that the next one begins behind. Keys only grow, so that a read comes to its end whatever the
other side answers; more than a bound of pages, or an answer of another shape, is a read that did not complete.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator
from typing import Any, Final

from sidecar.base.strictjson import JsonValue
from sidecar.rails.endpoint.caller import Calls
from sidecar.rails.endpoint.codes import CallFailed, CallRefused
from sidecar.rails.endpoint.contracts import DELIVERY_ENDPOINT
from sidecar.rails.messaging.reads import Reading, read_large_roster
from sidecar.rails.messaging.registry import (
    DEFAULTS_KEY,
    NOTHING_SAID,
    ChannelConfig,
    Registry,
    RegistryUnreadable,
    Unread,
    config_of,
)
from sidecar.rails.messaging.roster import Roster, RosterUnreadable
from sidecar.rails.names.tokens import GRAMMARS

MAX_PAGES: Final = 1_024
CALL_SECONDS: Final = 5.0


class _Incomplete(Exception):  # noqa: N818 - stays in this file
    """A read that did not come to its end."""


class MediatedReads:
    """The reads of ``sidecar.rails.messaging.reads.Reads``."""

    def __init__(self, caller: Calls, reading: Reading) -> None:
        self._caller = caller
        self._reading = reading

    async def roster(self) -> Roster:
        """Who is here. Raises RosterUnreadable."""
        with self._reading.timed("roster"):
            found: dict[str, bytes] = {}
            try:
                async for page in self._pages("read-roster"):
                    found.update(_records(page))
            except _Incomplete as error:
                raise RosterUnreadable(str(error)) from error
            return self._reading.roster(await read_large_roster(found.items(), self._reading.now_ms))

    async def registry(self) -> Registry:
        """What is said of channels. Raises RegistryUnreadable."""
        with self._reading.timed("registry"):
            channels: dict[str, ChannelConfig] = {}
            defaults = NOTHING_SAID
            unread: list[Unread] = []
            try:
                async for page in self._pages("read-registry"):
                    if page.get("defaults") is not None:
                        defaults, faults = config_of(DEFAULTS_KEY, page["defaults"])
                        unread += faults
                    for channel, config in _configs(page):
                        if GRAMMARS["channel"].accepts(channel):
                            channels[channel], faults = config_of(channel, config)
                            unread += faults
                        else:
                            unread.append(Unread(channel, ""))
            except _Incomplete as error:
                raise RegistryUnreadable(str(error)) from error
            spoken = defaults._replace(description=None, instructions=None)
            return self._reading.registry(Registry(spoken, channels, tuple(unread)))

    async def _pages(self, command: str) -> AsyncIterator[dict[str, Any]]:
        """The answers of one read. Raises _Incomplete."""
        args: dict[str, JsonValue] = {}
        for _ in range(MAX_PAGES):
            try:
                page = await self._caller.call(DELIVERY_ENDPOINT, command, args, seconds=CALL_SECONDS)
            except (CallRefused, CallFailed) as error:
                raise _Incomplete(f"{command}: {error}") from error
            if not isinstance(page, dict):
                raise _Incomplete(f"{command}: the answer is no page")
            yield page
            behind, after = page.get("next"), args.get("after", "")
            if behind is None:
                return
            if not isinstance(behind, str) or not isinstance(after, str) or behind <= after:
                raise _Incomplete(f"{command}: the pages do not go on")
            args = {"after": behind}
        raise _Incomplete(f"{command}: more than {MAX_PAGES} pages")


def _records(page: dict[str, Any]) -> list[tuple[str, bytes]]:
    try:
        return [(str(one["key"]), base64.b64decode(one["value"], validate=True)) for one in page["entries"]]
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise _Incomplete("a page of the roster has another form") from None


def _configs(page: dict[str, Any]) -> list[tuple[str, JsonValue]]:
    try:
        return [(str(one["channel"]), one["config"]) for one in page["channels"]]
    except (KeyError, TypeError, ValueError):
        raise _Incomplete("a page of the registry has another form") from None
