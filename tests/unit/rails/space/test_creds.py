"""Creds files: written owner-only and whole, read strictly, silent about their content."""

from __future__ import annotations

import stat
import traceback
from pathlib import Path

import pytest

from sidecar.base.safefile import UnsafeFile
from sidecar.base.secret import Secret
from sidecar.rails.space.claims import encode_account
from sidecar.rails.space.creds import MAX_CREDS_BYTES, InvalidCreds, format_creds, parse_creds, read_creds, write_creds
from sidecar.rails.space.nkeys import USER
from tests.unit.rails.space.test_claims import ACCOUNT_CLAIMS, BOB, OP_SIGN, USER_CLAIMS, pair, user_token


@pytest.mark.req("C10-09")
def test_what_is_written_is_read_back_from_an_owner_only_file(tmp_path: Path) -> None:
    directory = tmp_path / "creds"
    directory.mkdir(mode=0o700)
    path = directory / "bob.creds"
    write_creds(path, user_token(), BOB)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    creds = read_creds(path)
    assert creds.user == USER_CLAIMS
    assert creds.key.public == BOB.public
    assert creds.token_text == Secret(user_token().encode())
    path.chmod(0o640)
    with pytest.raises(UnsafeFile):
        read_creds(path)


def test_files_of_other_writers_are_read() -> None:
    seed = BOB.seed_text().reveal().decode()
    text = (
        f"-----BEGIN NATS USER JWT-----\r\n{user_token()}\r\n------END NATS USER JWT------\r\n\r\n"
        "************************* IMPORTANT *************************\r\nprose\r\n"
        f"-----BEGIN USER NKEY SEED-----\r\n{seed}\r\n------END USER NKEY SEED------\r\n\r\n****\r\n"
    )
    assert parse_creds(Secret(text.encode())).key.public == BOB.public


def broken() -> list[bytes]:
    text = format_creds(user_token(), BOB).reveal()
    token, seed = user_token().encode(), BOB.seed_text().reveal()
    jwt_block, seed_block = text[: text.index(b"The seed")], text[text.index(b"-----BEGIN USER") :]
    return [
        b"",
        jwt_block,
        seed_block,
        seed_block + jwt_block,
        text + jwt_block,
        text + seed_block,
        text + b"-----BEGIN SOMETHING ELSE-----\n",
        text.replace(token, b""),
        text.replace(token, token + b"x"),
        text.replace(seed, seed[:-1]),
        text.replace(seed, pair(USER, 9).seed_text().reveal()),
        text.replace(seed, OP_SIGN.seed_text().reveal()),
        text.replace(token, encode_account(ACCOUNT_CLAIMS, OP_SIGN, 1).encode()),
        text.replace(token, b"\xff" + token),
        text.replace(b"END NATS USER JWT", b"END USER NKEY SEED"),
    ]


@pytest.mark.parametrize("number", range(len(broken())))
def test_anything_else_is_refused_without_showing_it(number: int) -> None:
    text = broken()[number]
    with pytest.raises(InvalidCreds) as caught:
        parse_creds(Secret(text))
    shown = "".join(traceback.format_exception(caught.value))
    assert BOB.seed_text().reveal().decode()[2:] not in shown
    assert user_token()[-40:] not in shown


def test_the_longest_file_is_read_and_one_byte_more_is_not() -> None:
    text = format_creds(user_token(), BOB).reveal()
    filled = text + b"\n" * (MAX_CREDS_BYTES - len(text))
    assert parse_creds(Secret(filled)).key.public == BOB.public
    with pytest.raises(InvalidCreds, match="at most"):
        parse_creds(Secret(filled + b"\n"))


def test_the_creds_of_another_key_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidCreds, match="not that of"):
        write_creds(tmp_path / "x.creds", user_token(), pair(USER, 9))
    assert not list(tmp_path.iterdir())


def test_nothing_shows_the_seed() -> None:
    creds = parse_creds(format_creds(user_token(), BOB))
    assert BOB.seed_text().reveal().decode()[2:] not in repr(creds)
    assert user_token() not in repr(creds)
