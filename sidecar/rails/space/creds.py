"""Creds files: a user's token and seed in the one text file that every NATS client reads (C10-09).

The file is owner-only. It is written whole or not at all and read strictly: exactly these two blocks, once each, the
seed being that of the token's subject.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from sidecar.base.safefile import DirLock, read_secret, write_private
from sidecar.base.secret import Secret
from sidecar.rails.space.claims import MAX_TOKEN_BYTES, InvalidToken, Token, UserClaims, decode
from sidecar.rails.space.nkeys import USER, InvalidNkey, KeyPair

MAX_CREDS_BYTES: Final = MAX_TOKEN_BYTES + 4096

_TEXT: Final = b"""\
-----BEGIN NATS USER JWT-----
%b
------END NATS USER JWT------

The seed below is a secret: whoever reads it can act as this user.

-----BEGIN USER NKEY SEED-----
%b
------END USER NKEY SEED------
"""
# Other writers put three or more dashes around the labels and prose of their own between the blocks.
_BLOCK: Final = re.compile(
    rb"^-{3,}BEGIN (NATS USER JWT|USER NKEY SEED)-{3,}\r?\n([^\s-][^\s]*)\r?\n-{3,}END \1-{3,}\r?$", re.M
)
_LABEL: Final = re.compile(rb"^-{3,}(?:BEGIN|END) ", re.M)


class InvalidCreds(ValueError):  # noqa: N818 - a state of the file, not a mishap
    """Text that is not the creds of one user; the message shows nothing of it."""


@dataclass(frozen=True, slots=True)
class Creds:
    """A user's credentials. ``key`` and ``token_text`` are what a connection proves itself with."""

    token: Token
    user: UserClaims
    token_text: Secret
    key: KeyPair


def format_creds(token: str, key: KeyPair) -> Secret:
    """The content of a creds file; InvalidCreds when ``key`` is not the subject of ``token``."""
    text = Secret(_TEXT % (token.encode("ascii"), key.seed_text().reveal()))
    parse_creds(text)
    return text


def parse_creds(text: Secret) -> Creds:
    """Token and key of a creds file. Raises InvalidCreds; nothing of the content is in the message."""
    data = text.reveal()
    if len(data) > MAX_CREDS_BYTES:
        raise InvalidCreds(f"a creds file has at most {MAX_CREDS_BYTES} bytes")
    blocks = [(match[1], match[2]) for match in _BLOCK.finditer(data)]
    if [label for label, _ in blocks] != [b"NATS USER JWT", b"USER NKEY SEED"] or len(_LABEL.findall(data)) != 4:
        raise InvalidCreds("a creds file has one user token and then one user seed")
    try:
        token = decode(blocks[0][1].decode("ascii"), "user")
        key = KeyPair.from_seed_text(USER, Secret(blocks[1][1]))
    except (InvalidToken, InvalidNkey) as error:
        raise InvalidCreds(f"the creds are not usable: {error}") from None
    except ValueError:
        raise InvalidCreds("the creds are not usable") from None
    assert isinstance(token.claims, UserClaims)
    if key.public != token.claims.subject:
        raise InvalidCreds("the seed is not that of the token's user")
    return Creds(token, token.claims, Secret(blocks[0][1]), key)


def write_creds(path: str | os.PathLike[str], token: str, key: KeyPair, *, lock: DirLock | None = None) -> None:
    """Write the creds as an owner-only file that is old or new, never half."""
    write_private(path, format_creds(token, key), lock=lock)


def read_creds(path: str | os.PathLike[str]) -> Creds:
    """The creds of an owner-only file. Raises UnsafeFile, InvalidCreds, or an OSError of the file system."""
    return parse_creds(read_secret(path, MAX_CREDS_BYTES))
