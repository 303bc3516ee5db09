"""What a connection proves itself with: a user's token and key, or what an open broker asks for (C10-04, C10-05).

Whatever is secret leaves this process only after ``check`` has judged the broker: it is called when the broker has
greeted and nothing was sent yet.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sidecar.base.secret import Secret
from sidecar.rails.names.tokens import GRAMMARS
from sidecar.rails.space.creds import Creds


class Login(Protocol):
    """One way to log in. ``connection`` names the reply inbox (C10-08)."""

    @property
    def connection(self) -> str:
        """The nkey of a user, or the nonce of an open login; no login of one connection has another."""

    def options(self, check: Callable[[], None]) -> dict[str, Any]:
        """What the client library is given."""


@dataclass(frozen=True, slots=True)
class CredsLogin:
    """The token and the key of a creds file."""

    creds: Creds

    @property
    def connection(self) -> str:
        """The user's nkey."""
        return self.creds.key.public

    def options(self, check: Callable[[], None]) -> dict[str, Any]:
        """A signature over the broker's nonce, and the token."""

        def sign(nonce: str) -> bytes:
            check()
            return base64.b64encode(self.creds.key.sign(nonce.encode()))

        return {"signature_cb": sign, "user_jwt_cb": self.creds.token_text.reveal}


@dataclass(frozen=True, slots=True)
class OpenLogin:
    """A login at a broker without accounts of our own making: nothing, a token, or a user with a password.

    It has no grants and is no conformant authenticated deployment (C2-16). ``connection`` is a nonce of the client's
    choice. InvalidName for a nonce that is no token, ValueError for half of a pair or both kinds at once.
    """

    connection: str
    token: Secret | None = None
    user: str | None = None
    password: Secret | None = None

    def __post_init__(self) -> None:
        GRAMMARS["connection"].check(self.connection)
        if (self.user is None) != (self.password is None):
            raise ValueError("a user has a password")
        if self.token is not None and self.user is not None:
            raise ValueError("a login has a token, or a user and a password")

    def options(self, check: Callable[[], None]) -> dict[str, Any]:
        """Callbacks, so that nothing secret lies in the client's options."""
        if self.token is not None:
            return {"token": _after(check, self.token)}
        if self.user is not None and self.password is not None:
            return {"user": self.user, "password": _after(check, self.password)}
        return {}


def _after(check: Callable[[], None], secret: Secret) -> Callable[[], str]:
    def reveal() -> str:
        check()
        return secret.reveal().decode()

    return reveal
