"""Why a registration is refused: a code of the catalog and one sentence for an operator."""

from __future__ import annotations

from sidecar.rails.endpoint.codes import Code


class RegistrationRefused(Exception):  # noqa: N818 - what was decided
    """A step of a registration is refused; ``code`` is of the catalog. Nothing after that step was done."""

    code: Code = Code.INTERNAL

    def __init__(self, message: str, code: Code | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class Denied(RegistrationRefused):
    """No authority over the name or the instance (C13.2-02, C13.2-03)."""

    code = Code.PERMISSION_DENIED


class Conflict(RegistrationRefused):
    """Somebody else was faster, or the state is another than the one it was asked for (C13.8-11)."""

    code = Code.CONFLICT


class Corrupt(RegistrationRefused):
    """A key that is never deleted holds a marker, or bytes that are no value of it (C13.7-43, C13.12-17)."""


class Unverified(RegistrationRefused):
    """Revocation or eviction could not be verified on every server: the gate stays frozen (C13.1-034)."""

    code = Code.UNAVAILABLE


class Superseded(RegistrationRefused):
    """A later registration of this instance has taken over: this process serves no more (C13.1-029)."""

    code = Code.EXPIRED
