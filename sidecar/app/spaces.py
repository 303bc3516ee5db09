"""Spaces below one directory: keys on disk, account and streams at the broker. Every step may be run again.

``ROOT/trust`` is the trust of the broker, ``ROOT/spaces/NAME`` the account of one space. Connections made here prove
keys that never leave the process, live for minutes and hold the grants of one step.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

from sidecar.base.safefile import UnsafeFile, ensure_private_dir, read_private, write_private
from sidecar.rails.names import api, inboxes
from sidecar.rails.names.principals import LOCAL_OWNER, Lifecycle, Principal
from sidecar.rails.names.tokens import GRAMMARS, space_token
from sidecar.rails.space.broker_config import trust_section
from sidecar.rails.space.claims import AccountClaims, decode
from sidecar.rails.space.floor import floor_faults
from sidecar.rails.space.holder import Form, Holder, Profile
from sidecar.rails.space.nkeys import KeyPair
from sidecar.rails.space.provision import BrokerRefused, provision, shape
from sidecar.rails.space.resolver import ResolverRefused, push_account, push_permissions
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust, new_user

_STEP_SECONDS: Final = 300
_CONNECT_SECONDS: Final = 5
_RECORD: Final = "space.json"
_RECORD_BYTES: Final = 4096


class SpaceFailed(Exception):  # noqa: N818 - what happened
    """A step at the broker did not succeed; run it again when the reason is gone. The message shows no key."""


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
    trust, now = _trust(root), _now()
    section = trust_section(
        trust.operator_token(now), trust.system_account, trust.system_account_token(now), root.resolve() / "accounts"
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
    name = _name(name)
    directory = root / "spaces" / name
    form = _read_form(directory)
    if form is None:
        raise SpaceFailed(f"there is no space {name}; make it with: sidecar space create {name}")
    token = decode(read_private(directory / "account.jwt", 65536).decode("ascii", "replace"), "account")
    assert isinstance(token.claims, AccountClaims)
    return SpaceInfo(name, form, token.claims.subject, token.issued_at, len(token.claims.revocations))


async def create_space(root: Path, name: str, form: Form | None, url: str) -> tuple[SpaceInfo, list[str]]:
    """Make a space, or finish and prove one; the streams that were made now.

    Keys come first, then the account at the broker, then streams and buckets: whatever fails, the next call goes on
    there. ``form`` is that of a new space (default mediated); another than the kept one is refused. Raises SpaceFailed,
    WrongShape, UnsafeFile.
    """
    name = _name(name)
    trust = _trust(root)
    ensure_private_dir(root / "spaces")
    directory = root / "spaces" / name
    account = SpaceTrust.open(directory, name, os.urandom)
    token = account.account_token(trust, _now())
    kept = _keep_form(directory, form)
    async with _told(), _system(trust, url) as system:
        await push_account(system, token)
    async with _told(), _provisioner(account, kept, url) as client:
        made = await provision(client, name)
    return space_info(root, name), made


async def space_shape(root: Path, name: str, url: str) -> dict[str, list[str] | None]:
    """Each stream of a space at the broker with its differences; None for one that is missing."""
    info = space_info(root, name)
    account = SpaceTrust.open(root / "spaces" / info.name, info.name, os.urandom)
    async with _told(), _provisioner(account, info.form, url) as client:
        return await shape(client, info.name)


@contextlib.asynccontextmanager
async def _told() -> AsyncIterator[None]:
    """What the broker says becomes one error of ours."""
    try:
        yield
    except nats.errors.TimeoutError:
        raise SpaceFailed("the broker did not answer in time") from None
    except (nats.errors.Error, ResolverRefused, BrokerRefused) as error:
        raise SpaceFailed(f"the broker: {error}") from None


@contextlib.asynccontextmanager
async def _system(trust: BrokerTrust, url: str) -> AsyncIterator[Client]:
    key = new_user(os.urandom)
    inbox = inboxes.INBOX.subtree(connection=key.public)
    token = trust.system_user("account-pusher", push_permissions(inbox), key, _now(), _STEP_SECONDS)
    async with _connected(url, token, key) as client:
        yield client


@contextlib.asynccontextmanager
async def _provisioner(account: SpaceTrust, form: Form, url: str) -> AsyncIterator[Client]:
    """A connection that is the provisioner of exactly this account, as the broker itself confirms (C13.9-M01)."""
    key = new_user(os.urandom)
    lifecycle = Lifecycle(Principal(LOCAL_OWNER, "provisioner"), os.urandom(16).hex())
    holder = Holder(account.space, lifecycle, key.public, form)
    token = account.issue(Profile.PROVISIONER, holder, key, _now(), _STEP_SECONDS)
    async with _connected(url, token, key) as client:
        reply = await client.request(api.USER_INFO.build(), timeout=_CONNECT_SECONDS)
        known = json.loads(reply.data).get("data", {})
        if (known.get("user"), known.get("account")) != (key.public, account.account):
            raise SpaceFailed("the broker takes this connection for another user or account")
        yield client


@contextlib.asynccontextmanager
async def _connected(url: str, token: str, key: KeyPair) -> AsyncIterator[Client]:
    def sign(nonce: str) -> bytes:
        return base64.b64encode(key.sign(nonce.encode()))

    async def heard(error: Exception) -> None:
        refused.append(str(error))

    refused: list[str] = []
    client = Client()
    options: dict[str, Any] = {
        "user_jwt_cb": lambda: token.encode("ascii"),
        "signature_cb": sign,
        "inbox_prefix": inboxes.INBOX.build(connection=key.public),
        "error_cb": heard,
        "allow_reconnect": False,
        # Otherwise even the first connection is tried for minutes; 0 would be for ever.
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": _CONNECT_SECONDS,
    }
    try:
        await client.connect(url, **options)
    except nats.errors.NoServersError:
        raise SpaceFailed(f"no connection to {url}: no broker answers there") from None
    except nats.errors.Error as error:
        await client.close()
        raise SpaceFailed(f"no connection to {url}: {error}; does the broker trust this directory?") from None
    except OSError as error:
        raise SpaceFailed(f"no connection to {url}: {error.strerror or error}") from None
    try:
        said: dict[str, Any] = client._server_info  # the client shows the version only in parts
        if faults := floor_faults(said.get("version"), said.get("max_payload")):
            raise SpaceFailed(f"the broker cannot be used: {'; '.join(faults)}")
        yield client
    except nats.errors.TimeoutError:
        # A refused request is not answered; the refusal comes beside it.
        raise SpaceFailed(f"the broker: {refused[0]}" if refused else "the broker did not answer in time") from None
    finally:
        await client.close()
        key.wipe()


def check_url(url: str) -> str:
    """A broker address without anything secret in it; ValueError otherwise."""
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.username is not None:
        raise ValueError("a broker address is nats://HOST:PORT or tls://HOST:PORT, without user or password")
    return url


def _trust(root: Path) -> BrokerTrust:
    ensure_private_dir(root)
    return BrokerTrust.open(root / "trust", os.urandom)


def _name(name: str) -> str:
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


def _now() -> int:
    return int(time.time())
