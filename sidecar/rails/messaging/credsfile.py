"""A creds file as the source of credentials: read when it is asked, and again when somebody has replaced it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sidecar.base.clock import Now
from sidecar.base.safefile import UnsafeFile, read_secret
from sidecar.base.secret import Secret
from sidecar.rails.connection import Credentials
from sidecar.rails.space.creds import MAX_CREDS_BYTES, InvalidCreds, parse_creds

NEARLY_OVER: Final = 60.0
"""Seconds before the end of credentials from which on the file must hold others."""


class CredsFile:
    """Called by a connection for credentials. Whoever replaces the file keeps its user key.

    Credentials that are nearly over and not replaced yet are refused, so that the connection asks again later: a file
    that comes late still heals it.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], Now]) -> None:
        self._path = Path(path)
        self._clock = clock
        self._given: Secret | None = None

    async def __call__(self) -> Credentials:
        """Raises InvalidCreds and UnsafeFile, also for a file that is not there."""
        try:
            text = await asyncio.to_thread(read_secret, self._path, MAX_CREDS_BYTES)
        except OSError as error:
            raise UnsafeFile(self._path, f"cannot be read: {error.strerror}") from None
        expires_at = parse_creds(text).token.expires_at
        if expires_at is None:
            raise InvalidCreds("the credentials have no end")
        if text == self._given and expires_at - self._clock().wall <= NEARLY_OVER:
            raise InvalidCreds("the creds file has not been renewed yet")
        self._given = text
        return Credentials(text, float(expires_at))
