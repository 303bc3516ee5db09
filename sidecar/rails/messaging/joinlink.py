"""Join links: one line that says where a space is and what to log in with (C10-01..C10-07, OPEN C10-a).

    cotals://token@host:4222/space?channel=team.backend,ops

Pure. What is secret in a link leaves it as :class:`Secret` and stands in no message and no repr.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.base.secret import Secret
from sidecar.rails.connection.logins import OpenLogin
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.headers import JOIN_SCHEMES
from sidecar.rails.names.limits import DEFAULT_PORT
from sidecar.rails.names.tokens import policy_channel, space_token

MAX_LINK: Final = 16_384
"""Characters; a link beyond it is refused before it is taken apart."""
MAX_CHANNELS: Final = 64
_LARGEST_PORT: Final = 65_535
_PLAIN, _SECURE = JOIN_SCHEMES

_FORM: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?:(?P<userinfo>[^@/?#]*)@)?"
    r"(?P<host>\[[^\]@/?#]*\]|[^\[\]@:/?#]*)(?::(?P<port>[^@/?#]*))?"
    r"(?:/(?P<path>[^?#]*))?(?:\?(?P<query>[^#]*))?(?P<fragment>#.*)?"
)
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_PERCENT: Final = re.compile(r"%([0-9A-Fa-f]{2})?")
_VISIBLE: Final = re.compile(r"[!-~]*")


class Problem(StrEnum):
    """Why a link is refused."""

    FORM = "form"
    SCHEME = "scheme"
    HOST = "host"
    PORT = "port"
    SPACE = "space"
    USERINFO = "userinfo"
    CHANNEL = "channel"
    CREDS = "creds"


class InvalidLink(ValueError):  # noqa: N818 - what the text is
    """A text that is no join link, or one that cannot be used; ``problem`` says which part. Shows nothing of it."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Target:
    """What :meth:`Connection.open` is given for a link; ``login`` is None when the creds of a file are used."""

    urls: tuple[str, ...]
    tls: ssl.SSLContext | None
    login: OpenLogin | None


@dataclass(frozen=True, slots=True)
class JoinLink:
    """A link taken apart. ``channels`` are concrete or patterns as a subscription takes them, each once."""

    host: str
    port: int
    space: str
    tls: bool
    channels: tuple[str, ...] = ()
    token: Secret | None = None
    user: str | None = None
    password: Secret | None = None

    @property
    def url(self) -> str:
        """The broker's address; nothing to log in with is in it (C10-04)."""
        return f"nats://{self.host}:{self.port}"

    @property
    def has_login(self) -> bool:
        """Whether the link says what to log in with."""
        return self.token is not None or self.user is not None

    def target(
        self,
        connection: str,
        *,
        creds: bool = False,
        context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    ) -> Target:
        """Where and how to connect, before anything is dialled.

        ``connection`` names the reply inbox of an open login (C10-08). ``creds``: the caller brings a credential of its
        own, which excludes a token or user in the link (C10-07). Raises InvalidLink.
        """
        if creds and self.has_login:
            raise InvalidLink(Problem.CREDS, "the link has a login of its own: use it, or the creds, not both")
        login = None if creds else OpenLogin(connection, self.token, self.user, self.password)
        return Target((self.url,), context() if self.tls else None, login)


def parse_link(text: object) -> JoinLink:
    """The link in ``text``. Raises InvalidLink."""
    if not isinstance(text, str) or len(text) > MAX_LINK or _VISIBLE.fullmatch(text) is None:
        raise InvalidLink(Problem.FORM, f"a join link is one line of at most {MAX_LINK} ASCII characters")
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidLink(Problem.FORM, f"a join link is {_PLAIN}://HOST[:PORT]/SPACE or {_SECURE}://HOST[:PORT]/SPACE")
    scheme = found["scheme"]
    if scheme not in JOIN_SCHEMES:
        raise InvalidLink(Problem.SCHEME, f"a join link begins with {_PLAIN}:// or {_SECURE}://")
    if found["fragment"]:
        raise InvalidLink(Problem.FORM, "a join link has no part behind a #")
    token, user, password = _userinfo(found["userinfo"])
    return JoinLink(
        _host(found["host"]),
        _port(found["port"]),
        _space(found["path"]),
        scheme == _SECURE,
        _channels(found["query"]),
        token,
        user,
        password,
    )


def _host(text: str) -> str:
    if text.startswith("["):
        try:
            return f"[{ipaddress.IPv6Address(text[1:-1]).compressed}]"
        except ValueError:
            raise InvalidLink(Problem.HOST, "the brackets hold no IPv6 address") from None
    if _HOST.fullmatch(text) is None:
        raise InvalidLink(Problem.HOST, "the host is missing, or no host name")
    return text


def _port(text: str | None) -> int:
    if text is None:
        return DEFAULT_PORT
    if not (text.isdigit() and len(text) <= len(str(_LARGEST_PORT)) and 0 < int(text) <= _LARGEST_PORT):
        raise InvalidLink(Problem.PORT, f"a port is 1 to {_LARGEST_PORT}")
    return int(text)


def _space(path: str | None) -> str:
    if not path:
        raise InvalidLink(Problem.SPACE, "the space is missing: it stands behind the host and a /")
    if "/" in path:
        raise InvalidLink(Problem.SPACE, "a space is one name; there is more behind it")
    if "@" in path:
        # What stands in front of it would be taken for a host, and a part of the password for a public name.
        raise InvalidLink(Problem.SPACE, "there is an @ behind the host; a / in a login is written %2F")
    try:
        return space_token(_decoded(path, Problem.SPACE))
    except InvalidName:
        raise InvalidLink(Problem.SPACE, "the space is no name of a space") from None


def _userinfo(text: str | None) -> tuple[Secret | None, str | None, Secret | None]:
    if text is None:
        return None, None, None
    first, colon, second = text.partition(":")
    user = _decoded(first, Problem.USERINFO)
    password = _decoded(second, Problem.USERINFO)
    if not user:
        raise InvalidLink(Problem.USERINFO, "there is nothing in front of the @, or no user in front of the :")
    if not colon:
        return Secret(user.encode()), None, None
    if not password:
        raise InvalidLink(Problem.USERINFO, "the password is empty")
    return None, user, Secret(password.encode())


def _channels(query: str | None) -> tuple[str, ...]:
    given: dict[str, str] = {}
    for pair in (query or "").split("&"):
        name, _, value = pair.partition("=")
        if name not in ("channel", "channels"):
            continue  # a later revision may know it
        if name in given:
            raise InvalidLink(Problem.CHANNEL, f"{name} is given twice")
        given[name] = _decoded(value, Problem.CHANNEL)
    listed = given.get("channels", given.get("channel", ""))
    names = [one.strip() for one in listed.split(",")]
    try:
        channels = tuple(dict.fromkeys(policy_channel(one) for one in names if one))
    except InvalidName:
        raise InvalidLink(Problem.CHANNEL, "a channel of the link is no channel or pattern") from None
    if len(channels) > MAX_CHANNELS:
        raise InvalidLink(Problem.CHANNEL, f"a link has at most {MAX_CHANNELS} channels")
    return channels


def _decoded(text: str, problem: Problem) -> str:
    """Percent-decoded, strictly: two hex digits each, UTF-8, no control character."""
    data = bytearray()
    end = 0
    for found in _PERCENT.finditer(text):
        if found[1] is None:
            raise InvalidLink(problem, "a % is followed by two hex digits")
        data += text[end : found.start()].encode() + bytes((int(found[1], 16),))
        end = found.end()
    data += text[end:].encode()
    try:
        decoded = data.decode()
    except UnicodeDecodeError:
        raise InvalidLink(problem, "what is percent-encoded is no UTF-8") from None
    if any(character < " " or character == "\x7f" for character in decoded):
        raise InvalidLink(problem, "it holds a control character")
    return decoded
