"""Spaces below one directory: keys on disk, account and streams at the broker. Every step may be run again.

``ROOT/trust`` is the trust of the broker, ``ROOT/spaces/NAME`` the account of one space. Connections made here prove
keys that never leave the process, live for minutes and hold the grants of one step.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from nats.aio.client import Client

from sidecar.app.space_links import Links, as_profile, now, system_user, told
from sidecar.app.space_links import SpaceFailed as SpaceFailed
from sidecar.base.safefile import UnsafeFile, ensure_private_dir, read_private, write_private
from sidecar.base.strictjson import canonical
from sidecar.rails.names import buckets
from sidecar.rails.names.tokens import GRAMMARS, space_token
from sidecar.rails.space.broker_config import trust_section
from sidecar.rails.space.claims import MAX_ACCOUNT_BYTES, AccountClaims, decode
from sidecar.rails.space.holder import Form, Profile
from sidecar.rails.space.keys import Changed, read_key, write_key
from sidecar.rails.space.provision import provision, shape
from sidecar.rails.space.resolver import push_newest
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust

_RECORD: Final = "space.json"
_RECORD_BYTES: Final = 4096


DELIVERY_CLASSES: Final = ("durable", "live")
"""What a channel is by default: ``durable`` at a broker of one's own, ``live`` at a public one (C7-08)."""


@dataclass(frozen=True, slots=True)
class SpaceInfo:
    """What is on disk about a space; ``revoked`` counts the users whose tokens are void."""

    name: str
    form: Form
    account: str
    issued_at: int
    revoked: int


def trust_lines(root: Path) -> str:
    """The lines of the broker's configuration that make it trust ``root``; makes the trust when there is none."""
    trust, at = _trust(root), now()
    section = trust_section(
        trust.operator_token(at), trust.system_account, trust.system_account_token(at), root.resolve() / "accounts"
    )
    ensure_private_dir(root / "accounts")
    return section


def spaces(root: Path) -> list[SpaceInfo]:
    """Every space below ``root``, by name; one that was begun and has no record yet is left out."""
    directory = root / "spaces"
    names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    return [space_info(root, name) for name in names if (directory / name / _RECORD).exists()]


def space_info(root: Path, name: str) -> SpaceInfo:
    """One space. Raises SpaceFailed when there is none of that name."""
    name = check_name(name)
    directory = root / "spaces" / name
    form = _read_form(directory)
    if form is None:
        raise SpaceFailed(f"there is no space {name}; make it with: sidecar space create {name}")
    token = decode(read_private(directory / "account.jwt", MAX_ACCOUNT_BYTES).decode("ascii", "replace"), "account")
    assert isinstance(token.claims, AccountClaims)
    return SpaceInfo(name, form, token.claims.subject, token.issued_at, len(token.claims.revocations))


async def create_space(
    root: Path, name: str, form: Form | None, url: str, delivery_class: str = DELIVERY_CLASSES[0]
) -> tuple[SpaceInfo, list[str]]:
    """Make a space, or finish and prove one; the streams that were made now.

    The defaults of its channels are written when there are none (C7-08); a value that is there stays.

    Keys come first, then the account at the broker, then streams and buckets: whatever fails, the next call goes on
    there. ``form`` is that of a new space (default mediated); another than the kept one is refused. Raises SpaceFailed,
    WrongShape, UnsafeFile.
    """
    name = check_name(name)
    trust = _trust(root)
    ensure_private_dir(root / "spaces")
    directory = root / "spaces" / name
    account = SpaceTrust.open(directory, name, os.urandom)
    account.account_token(trust, now())
    kept = _keep_form(directory, form)
    await _push(account, trust, url)
    async with told(), as_profile(account, kept, url) as client:
        made = await provision(client, name)
        await _channel_defaults(client, name, delivery_class)
    return space_info(root, name), made


async def _channel_defaults(client: Client, space: str, delivery_class: str) -> None:
    subject = buckets.CHANNELS.subject(space, buckets.CHANNEL_DEFAULTS)
    kept = await read_key(client, buckets.CHANNELS.stream(space), subject)
    if kept.revision == 0:
        with contextlib.suppress(Changed):  # somebody else was faster, which is as good
            await write_key(client, subject, canonical({"deliveryClass": delivery_class}), 0)


@dataclass(frozen=True, slots=True)
class OpenSpace:
    """A space with a connection that may provision it."""

    root: Path
    name: str
    form: Form
    url: str
    trust: BrokerTrust
    account: SpaceTrust
    client: Client
    links: Links

    async def as_(self, profile: Profile) -> Client:
        """A connection with the grants of one profile, which ends with the space; not to be closed. Raises
        SpaceFailed."""
        return await self.links.of(profile)

    @property
    def directory(self) -> Path:
        return self.root / "spaces" / self.name

    async def push(self) -> None:
        """Make the broker know the account's token as it is on disk."""
        await _push(self.account, self.trust, self.url)


async def _push(account: SpaceTrust, trust: BrokerTrust, url: str) -> None:
    """Make the broker know the account's token as it is on disk, with what other copies of the directory have revoked.
    Raises SpaceFailed."""

    def adopt(known: str) -> None:
        account.adopt(trust, known, now())

    newest = functools.partial(account.account_token, trust, now())
    async with told(), system_user(trust, url) as system:
        await push_newest(system, newest, account=account.account, adopt=adopt)


@contextlib.asynccontextmanager
async def open_space(root: Path, name: str, url: str) -> AsyncIterator[OpenSpace]:
    """A space that exists, at the broker, for steps of provisioning. Raises SpaceFailed, UnsafeFile."""
    info = space_info(root, name)
    account = SpaceTrust.open(root / "spaces" / info.name, info.name, os.urandom)
    async with told(), as_profile(account, info.form, url) as client, Links(account, info.form, url) as links:
        yield OpenSpace(root, info.name, info.form, url, _trust(root), account, client, links)


async def space_shape(root: Path, name: str, url: str) -> dict[str, list[str] | None]:
    """Each stream of a space at the broker with its differences; None for one that is missing."""
    async with open_space(root, name, url) as space:
        return await shape(space.client, space.name)


def check_url(url: str) -> str:
    """A broker address without anything secret in it; ValueError otherwise."""
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.username is not None:
        raise ValueError("a broker address is nats://HOST:PORT or tls://HOST:PORT, without user or password")
    return url


def _trust(root: Path) -> BrokerTrust:
    ensure_private_dir(root)
    return BrokerTrust.open(root / "trust", os.urandom)


def check_name(name: str) -> str:
    if not GRAMMARS["space"].accepts(name):
        raise SpaceFailed(
            f"a space is named by letters, digits, _ and -, up to 64; for example: {space_token(name[:64])}"
        )
    return name


def _keep_form(directory: Path, wanted: Form | None) -> Form:
    kept = _read_form(directory)
    if kept is None:
        kept = wanted or Form.MEDIATED
        write_private(directory / _RECORD, json.dumps({"form": kept}).encode("ascii"))
    elif wanted not in (None, kept):
        raise SpaceFailed(f"the space exists in the form {kept}; its credentials cannot be of another")
    return kept


def _read_form(directory: Path) -> Form | None:
    try:
        return Form(json.loads(read_private(directory / _RECORD, _RECORD_BYTES))["form"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, UnsafeFile):
            raise
        raise UnsafeFile(directory / _RECORD, "does not say the form of a space") from None
