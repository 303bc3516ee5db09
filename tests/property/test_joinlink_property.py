"""Join links: whatever is built is read back, and whatever is read raises one type of error or none."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.base.secret import Secret
from sidecar.rails.messaging.joinlink import InvalidLink, JoinLink, parse_link

_TEXT = st.text(st.characters(min_codepoint=0x20, codec="utf-8", exclude_characters="\x7f"), min_size=1)
_HOSTS = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
_SEGMENT = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
_CHANNELS = st.lists(st.lists(_SEGMENT, min_size=1, max_size=3).map(".".join), max_size=4, unique=True)
_LOGINS = st.one_of(st.none(), _TEXT, st.tuples(_TEXT, _TEXT))


@pytest.mark.req("C10-01", "C10-02", "C10-03", "C10-04", "C10-05")
@given(
    scheme=st.sampled_from(["cotal", "cotals"]),
    host=_HOSTS,
    port=st.none() | st.integers(1, 65535),
    space=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    login=_LOGINS,
    name=st.sampled_from(["channel", "channels"]),
    channels=_CHANNELS,
)
def test_what_is_built_is_read_back(
    scheme: str,
    host: str,
    port: int | None,
    space: str,
    login: str | tuple[str, str] | None,
    name: str,
    channels: list[str],
) -> None:
    parts = (login,) if isinstance(login, str) else login or ()
    userinfo = ":".join(quote(one, safe="") for one in parts) + "@" if parts else ""
    address = host if port is None else f"{host}:{port}"
    link = parse_link(f"{scheme}://{userinfo}{address}/{space}?{name}={','.join(channels)}")
    secrets = [Secret(one.encode()) for one in parts]
    assert link == JoinLink(
        host,
        port or 4222,
        space,
        scheme == "cotals",
        tuple(channels),
        secrets[0] if len(parts) == 1 else None,
        parts[0] if len(parts) == 2 else None,
        secrets[1] if len(parts) == 2 else None,
    )
    assert link.url == f"nats://{host}:{port or 4222}"


@pytest.mark.req("C10-01", "C10-04")
@given(st.text() | st.from_regex(r"cotals?://[!-~]{0,40}/[!-~]{0,40}", fullmatch=True))
@example("cotal://@/")
@example("cotal://[::1/main")
def test_any_text_is_a_link_or_refused(text: str) -> None:
    try:
        link = parse_link(text)
    except InvalidLink:
        return
    assert text.startswith(("cotal://", "cotals://"))
    assert "@" not in link.url
    assert 0 < link.port < 65536
