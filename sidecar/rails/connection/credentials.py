"""The credentials at hand, and the callback that mints more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from sidecar.base.secret import Secret
from sidecar.ops.logging import told
from sidecar.rails.connection.faults import CredentialsRefused, Fault, Said
from sidecar.rails.connection.link import LinkFault
from sidecar.rails.connection.logins import CredsLogin, Login, OpenLogin
from sidecar.rails.connection.policy import Policy
from sidecar.rails.space.creds import InvalidCreds, parse_creds


@dataclass(frozen=True, slots=True)
class Credentials:
    """The content of a creds file, and the Unix time at which the broker stops taking it."""

    text: Secret
    expires_at: float


_FOREVER: Final = 253_402_300_799.0
"""The last second of the year 9999: what an open login ends at."""


class Wallet:
    """Credentials of one user key, or an open login."""

    def __init__(self, minter: Callable[[], Awaitable[Credentials | OpenLogin]], within: float) -> None:
        self._minter = minter
        self._within = within
        self._login: Login | None = None
        self._expires_at = 0.0
        self._renew_at: float | None = None

    @property
    def login(self) -> Login:
        """What the next login proves itself with."""
        assert self._login is not None
        return self._login

    async def refill(self) -> None:
        """Ask the minter. Raises LinkFault, also for what the callback raises: it cannot stop the connection."""
        try:
            async with asyncio.timeout(self._within):
                minted = await self._minter()
            login, expires_at = _read(minted)
        except CredentialsRefused as error:
            raise LinkFault(Said(Fault.CREDENTIALS_REFUSED, str(error) or "there are no more credentials")) from None
        except InvalidCreds as error:
            raise LinkFault(Said(Fault.CREDENTIALS, str(error))) from None
        except Exception as error:
            # What an error that is not ours says may hold a secret.
            raise LinkFault(Said(Fault.CREDENTIALS, f"the minter failed: {told(error)}")) from None
        if self._login is not None and login.connection != self._login.connection:
            raise LinkFault(Said(Fault.CREDENTIALS_REFUSED, "the credentials are of another user key"))
        self._login, self._expires_at, self._renew_at = login, expires_at, None

    def renew_in(self, now: float, policy: Policy) -> float:
        """Seconds until they have to be replaced, counted from the Unix time ``now``."""
        if self._renew_at is None:
            self._renew_at = policy.renew_at(now, self._expires_at)
        return max(0.0, self._renew_at - now)

    def later(self, now: float, wait: float) -> None:
        """They could not be replaced: try again after ``wait``."""
        self._renew_at = now + wait

    def due(self, now: float, policy: Policy) -> bool:
        """Whether a login should not be tried with them any more."""
        return self.renew_in(now, policy) == 0.0


def _read(minted: Credentials | OpenLogin) -> tuple[Login, float]:
    """The login and its end. Raises InvalidCreds."""
    if isinstance(minted, OpenLogin):
        return minted, _FOREVER
    return CredsLogin(parse_creds(minted.text)), minted.expires_at
