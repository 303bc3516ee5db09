"""The largest credentials that a broker is measured with, the same bytes each time (C13.9-015, C13.12-05). Pure.

Their keys are public constants and their account is nobody's: they open nothing. The policy gate on grants is another
bound and is not applied to them: a space may raise it as long as what it then mints still fits into a control line.
"""

from __future__ import annotations

import json
from typing import Final

from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.space.broker_config import CONNECT_ENVELOPE, MAX_MINTED_JWT_BYTES
from sidecar.rails.space.claims import UserClaims, encode_user
from sidecar.rails.space.grants import permissions
from sidecar.rails.space.holder import Capability, EventRead, Form, Holder, Profile, Service
from sidecar.rails.space.nkeys import ACCOUNT, USER, KeyPair

SPACE: Final = "fixture"
AT: Final = 1_767_225_600
"""When they are issued, in Unix seconds; their life is an hour of that day."""
_LIFE: Final = 3600
ENDPOINTS: Final = ("com.example.alpha", "com.example.beta", "com.example.gamma")
COMMANDS: Final = tuple(f"command-{n:02}" for n in range(1, 13))
_CHANNELS: Final = ("general", "team.>")


def _key(role: int, number: int) -> KeyPair:
    return KeyPair.generate(role, lambda size: bytes([number]) * size)


def user_key(profile: Profile) -> KeyPair:
    """The key of a fixture: known to everybody."""
    return _key(USER, 1 if profile is Profile.AGENT else 2)


def fixture_holder(profile: Profile, connection: str, space: str = SPACE) -> Holder:
    """The agent with every baseline grant and three endpoints of twelve commands, each for itself and for its owner,
    as a call, as a submission and with the progress of its goals; or an instance of an endpoint of twelve commands."""
    owner, uid = "u_" + "a" * 26, "f" * 26
    lifecycle = Lifecycle(Principal(owner, "fixture"), uid)
    if profile is Profile.ENDPOINT:
        return Holder(space, lifecycle, connection, service=Service("e" * 26, 1, COMMANDS, ENDPOINTS[0]))
    capabilities = tuple(
        Capability(endpoint, command, mode, target, journal=True)
        for endpoint in ENDPOINTS
        for command in COMMANDS
        for mode, target in (("self", ()), ("owner", (owner,)))
    )
    return Holder(
        space,
        lifecycle,
        connection,
        Form.COMPATIBLE,
        _CHANNELS,
        allow_publish=_CHANNELS,
        roles=("reviewer",),
        capabilities=capabilities,
        hears=tuple(EventRead(endpoint) for endpoint in ENDPOINTS),
    )


def fixture_token(profile: Profile) -> str:
    """The token of a fixture."""
    key, account = user_key(profile), _key(ACCOUNT, 3)
    holder = fixture_holder(profile, key.public)
    granted = permissions(profile, holder, MAX_MINTED_JWT_BYTES)
    claims = UserClaims(holder.lifecycle.principal.dash, key.public, account.public, granted, holder.tags)
    return encode_user(claims, account, AT, AT + _LIFE)


def connect_line(token: str) -> bytes:
    """A CONNECT line that shows a token, with an envelope of the size that is reckoned with."""
    line = b"CONNECT " + json.dumps({"jwt": token}, separators=(",", ":")).encode() + b"\r\n"
    return line + b" " * (CONNECT_ENVELOPE - len(line) + len(token))
