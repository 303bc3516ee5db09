"""Creds as the source of credentials: a file, which is read again when somebody has replaced it, or a text."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from sidecar.base.clock import Now
from sidecar.base.safefile import UnsafeFile, read_secret
from sidecar.base.secret import Secret
from sidecar.rails.connection import Credentials
from sidecar.rails.space.creds import MAX_CREDS_BYTES, InvalidCreds, parse_creds

NEARLY_OVER: Final = 60.0
"""Seconds before the end of credentials from which on the file must hold others."""
Source = Callable[[], Awaitable[Credentials]]
"""Asked for credentials, at the start and again ahead of their end."""


class CredsText:
    """Called by a connection for credentials that are at hand.

    Credentials that are nearly over and were given already are refused, so that the connection asks again later.
    """

    def __init__(self, text: Secret, clock: Callable[[], Now]) -> None:
        self._text, self._clock = text, clock
        self._given: Secret | None = None

    async def __call__(self) -> Credentials:
        """Raises InvalidCreds."""
        return self._fresh(self._text)

    def _fresh(self, text: Secret) -> Credentials:
        expires_at = parse_creds(text).token.expires_at
        if expires_at is None:
            raise InvalidCreds("the credentials have no end")
        if text == self._given and expires_at - self._clock().wall <= NEARLY_OVER:
            raise InvalidCreds("the creds have not been renewed yet")
        self._given = text
        return Credentials(text, float(expires_at))


class CredsFile(CredsText):
    """Called by a connection for the credentials in a file. Whoever replaces the file keeps its user key; one that
    comes late still heals the connection."""

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], Now]) -> None:
        super().__init__(Secret(b""), clock)
        self._path = Path(path)

    async def __call__(self) -> Credentials:
        """Raises InvalidCreds and UnsafeFile, also for a file that is not there."""
        try:
            self._text = await asyncio.to_thread(read_secret, self._path, MAX_CREDS_BYTES)
        except OSError as error:
            raise UnsafeFile(self._path, f"cannot be read: {error.strerror}") from None
        return self._fresh(self._text)


def source(creds: str | os.PathLike[str] | Secret | bytes | Source, clock: Callable[[], Now]) -> Source:
    """What a connection asks for credentials: ``creds`` is the path of a creds file, or the content of one as bytes or
    a Secret, or a source already."""
    if isinstance(creds, str | os.PathLike):
        return CredsFile(creds, clock)
    if isinstance(creds, Secret | bytes):
        return CredsText(creds if isinstance(creds, Secret) else Secret(creds), clock)
    return creds
