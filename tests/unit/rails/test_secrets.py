"""What holds a key, a token or a password on the rails shows none of it, however it is printed or carried away."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import hmac
import json
import pickle
import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from sidecar.base import secret as secret_module
from sidecar.base.secret import Secret
from sidecar.ops.logging import plain
from sidecar.rails.connection import Credentials
from sidecar.rails.connection.credentials import Wallet
from sidecar.rails.connection.link import LinkFault
from sidecar.rails.connection.logins import CredsLogin, OpenLogin
from sidecar.rails.messaging.credsfile import CredsFile
from sidecar.rails.messaging.joinlink import InvalidLink, parse_link
from sidecar.rails.space.claims import Permissions
from sidecar.rails.space.creds import InvalidCreds, format_creds, parse_creds, read_creds
from sidecar.rails.space.nkeys import ACCOUNT, OPERATOR, USER, KeyPair
from sidecar.rails.space.trust import BrokerTrust, SpaceTrust
from tests.canary import CANARY, leaks_in, spellings_in

NOW = 1_800_000_000
TEXT = CANARY.decode()


@pytest.fixture(scope="module")
def holders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything that has the canary in it: every key that is made here is the canary."""
    directory = tmp_path_factory.mktemp("trust")
    directory.chmod(0o700)
    spaces = SpaceTrust.open(directory / "space", "main", lambda size: CANARY[:size])
    key = KeyPair(USER, Secret(CANARY))
    token = spaces.mint("alice", Permissions(), key, NOW, 300)
    text = format_creds(token, key)
    creds = parse_creds(text)
    link, named = parse_link(f"cotal://{TEXT}@host/main"), parse_link(f"cotals://ann:{TEXT}@host/main")
    wallet = Wallet(_minter(OpenLogin("N" * 22, Secret(CANARY))), 1)
    asyncio.run(wallet.refill())
    return {
        "seed text": key.seed_text(),
        "user key": key,
        "account key": KeyPair(ACCOUNT, Secret(CANARY)),
        "operator key": KeyPair(OPERATOR, Secret(CANARY)),
        "broker trust": BrokerTrust.open(directory / "trust", lambda size: CANARY[:size]),
        "space trust": spaces,
        "creds text": text,
        "creds": creds,
        "credentials": Credentials(text, 1.0),
        "login": CredsLogin(creds),
        "options of a login": CredsLogin(creds).options(lambda: None),
        "token login": OpenLogin("N" * 22, Secret(CANARY)),
        "password login": OpenLogin("N" * 22, None, "ann", Secret(CANARY)),
        "options of a password": OpenLogin("N" * 22, None, "ann", Secret(CANARY)).options(lambda: None),
        "link with a token": link,
        "link with a password": named,
        "target": link.target("N" * 22),
        "wallet": wallet,
    }


def _minter(given: Credentials | OpenLogin) -> Any:
    async def mint() -> Credentials | OpenLogin:
        return given

    return mint


def carried(value: Any) -> list[str | bytes]:
    """Whatever a value gives away to those who print or carry it; a refusal gives its text."""
    ways: list[Callable[[Any], Any]] = [
        repr,
        str,
        "{}".format,
        "{!r:>400}".format,
        lambda one: "%s" % (one,),  # noqa: UP031 - as loggers of others do it
        lambda one: json.dumps(one, default=repr),
        lambda one: orjson.dumps(one, default=repr),
        lambda one: json.dumps(plain(one)),
        *(lambda one, n=n: pickle.dumps(one, n) for n in range(pickle.HIGHEST_PROTOCOL + 1)),
        lambda one: repr(copy.deepcopy(one)),
        lambda one: repr(dataclasses.asdict(one)),
        lambda one: repr(dataclasses.astuple(one)),
        lambda one: repr(vars(one)),
        lambda one: "".join(traceback.format_exception(ValueError(one, one))),
    ]
    found: list[str | bytes] = []
    for way in ways:
        try:
            shown = way(value)
        except Exception as error:
            shown = "".join(traceback.format_exception(error))
        found.append(shown if isinstance(shown, bytes) else str(shown))
    return found


@pytest.mark.req("W9-17", "C10-04")
def test_no_form_of_a_holder_shows_what_it_holds(holders: dict[str, Any]) -> None:
    for name, holder in holders.items():
        for shown in carried(holder):
            assert not spellings_in(shown), name
        for shown in carried([holder, {"it": holder}]):
            assert not spellings_in(shown), name


def test_the_search_finds_a_seed_as_nats_writes_it() -> None:
    for role in (USER, ACCOUNT, OPERATOR):
        text = KeyPair(role, Secret(CANARY)).seed_text().reveal()
        assert "nkey" in spellings_in(b"key: " + text)
    assert leaks_in(f"x {TEXT[:16]} y", {"one": CANARY}) == ["one (raw)"]


@pytest.mark.parametrize(
    "text",
    [
        f"cotal://{TEXT}",
        f"cotal://ann:1/{TEXT}@host/main",
        f"cotal://ann:pa/{TEXT}@host/main",
        f"cotal://host/{TEXT}@x",
        f"cotal://host/main?channel={TEXT}",
        f"cotal://host/main#{TEXT}",
        f"cotal://a:{TEXT}:%zz@host/main",
        f"cotal://{TEXT}%ff@host/main",
        f"cotal://ann:{TEXT}@ho st/main",
        f"nats://ann:{TEXT}@host/main",
    ],
)
def test_a_link_that_is_refused_is_not_shown(text: str) -> None:
    """A secret stands in the wrong place of a link as easily as in the right one."""
    with pytest.raises(InvalidLink) as refused:
        parse_link(text)
    for shown in carried(refused.value):
        assert not spellings_in(shown)


def test_creds_that_are_refused_are_not_shown(tmp_path: Path, holders: dict[str, Any]) -> None:
    whole = holders["creds text"].reveal()
    for spoilt in (whole + whole, whole[:-40], whole.replace(b"BEGIN USER", b"BEGIN ACCOUNT"), CANARY * 3):
        with pytest.raises(InvalidCreds) as refused:
            parse_creds(Secret(spoilt))
        for shown in carried(refused.value):
            assert not spellings_in(shown)
    path = tmp_path / "ann.creds"
    path.write_bytes(whole)
    path.chmod(0o644)
    for reader in (lambda: read_creds(path), lambda: asyncio.run(CredsFile(path, time.time)())):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"has mode 0644; run: chmod 600") as unsafe:
            reader()
        for shown in carried(unsafe.value):
            assert not spellings_in(shown)


def test_a_minter_that_fails_tells_its_type_and_place_alone() -> None:
    async def mint() -> Credentials:
        raise RuntimeError(TEXT)

    with pytest.raises(LinkFault) as failed:
        asyncio.run(Wallet(mint, 1).refill())
    assert re.fullmatch(r"the minter failed: RuntimeError at test_secrets\.py:\d+", str(failed.value))
    assert not spellings_in("".join(traceback.format_exception(failed.value)))


def test_a_creds_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(LinkFault, match=r"the minter failed: UnsafeFile: .*ann\.creds cannot be read: No such file"):
        asyncio.run(Wallet(CredsFile(tmp_path / "ann.creds", time.time), 1).refill())  # type: ignore[arg-type]


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bytes, bytes]] = []

    def compared(one: Any, other: Any) -> bool:
        asked.append((bytes(one), bytes(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(secret_module, "hmac", type("hmac", (), {"compare_digest": staticmethod(compared)}))
    assert Secret(CANARY) == Secret(CANARY)
    assert Secret(CANARY) != Secret(CANARY[::-1])
    assert len(asked) == 2
