"""Join links: what is accepted, what each part becomes, and that nothing secret is shown."""

from __future__ import annotations

import ssl

import pytest

from sidecar.base.secret import Secret
from sidecar.rails.messaging.joinlink import MAX_CHANNELS, MAX_LINK, InvalidLink, Problem, parse_link

NONCE = "nonce_of_a_client"


def refused(text: object) -> InvalidLink:
    with pytest.raises(InvalidLink) as error:
        parse_link(text)
    return error.value


@pytest.mark.req("C10-01")
def test_both_schemes_and_no_other() -> None:
    assert not parse_link("cotal://host/main").tls
    assert parse_link("cotals://host/main").tls
    for scheme in ("nats", "tls", "http", "cotalss", "COTAL", "Cotals"):
        assert refused(f"{scheme}://host/main").problem is Problem.SCHEME


@pytest.mark.req("C10-01")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cotal://host", Problem.SPACE),
        ("cotal://host/", Problem.SPACE),
        ("cotal://host?channel=a", Problem.SPACE),
        ("cotal:///main", Problem.HOST),
        ("cotal://token@/main", Problem.HOST),
        ("cotal://:4222/main", Problem.HOST),
        ("cotal://-host/main", Problem.HOST),
        ("cotal://[::g]/main", Problem.HOST),
        ("cotal://[]/main", Problem.HOST),
        ("cotal://host/main/more", Problem.SPACE),
        ("cotal://host/main/", Problem.SPACE),
        ("cotal://host/main#x", Problem.FORM),
        ("cotal://host/main#", Problem.FORM),
        ("cotal:host/main", Problem.FORM),
        ("cotal://a@b@host/main", Problem.FORM),
        ("host/main", Problem.FORM),
        ("", Problem.FORM),
        (" cotal://host/main", Problem.FORM),
        ("cotal://host/main\n", Problem.FORM),
        ("cotal://hö/main", Problem.FORM),
        (None, Problem.FORM),
        (b"cotal://host/main", Problem.FORM),
        ("cotal://host/" + "m" * MAX_LINK, Problem.FORM),
        ("cotal://host/" + "m" * 65, Problem.SPACE),
        ("cotal://host/ma%zzin", Problem.SPACE),
        ("cotal://host/ma%00in", Problem.SPACE),
        ("cotal://host/ma%ffin", Problem.SPACE),
    ],
)
def test_what_is_no_link(text: object, problem: Problem) -> None:
    assert refused(text).problem is problem


@pytest.mark.req("C10-02")
def test_the_port() -> None:
    assert parse_link("cotal://host/main").port == 4222
    assert parse_link("cotal://host:1/main").port == 1
    assert parse_link("cotal://u:p@host:65535/main?channel=a").port == 65535
    for port in ("0", "65536", "", "-1", "+1", "1e3", "99999999999", "٣"):
        assert refused(f"cotal://host:{port}/main").problem in (Problem.PORT, Problem.FORM)


@pytest.mark.req("C10-03")
def test_channels_in_both_spellings() -> None:
    for name in ("channel", "channels"):
        assert parse_link(f"cotal://h/main?{name}=a,team.%3E,%20b%20,,a").channels == ("a", "team.>", "b")
    assert parse_link("cotal://h/main?channel=a&channels=b&later=1").channels == ("b",)
    assert parse_link("cotal://h/main?channel=").channels == ()
    assert parse_link("cotal://h/main?").channels == ()
    assert parse_link("cotal://h/main").channels == ()
    for wrong in ("channel=a..b", "channel=a&channel=b", "channel=a%20b", "channel=%3E.a", "channels=a+b"):
        assert refused(f"cotal://h/main?{wrong}").problem is Problem.CHANNEL
    most = ",".join(f"c{n}" for n in range(MAX_CHANNELS))
    assert len(parse_link(f"cotal://h/main?channel={most}").channels) == MAX_CHANNELS
    assert refused(f"cotal://h/main?channel={most},more").problem is Problem.CHANNEL


@pytest.mark.req("C10-04", "C10-05")
def test_userinfo_is_a_token_or_a_user_and_never_in_the_address() -> None:
    token = parse_link("cotal://s3cret%40x@host/main")
    assert (token.token, token.user, token.password) == (Secret(b"s3cret@x"), None, None)
    pair = parse_link("cotal://ann%3A:pass:word@host:1234/main")
    assert (pair.token, pair.user, pair.password) == (None, "ann:", Secret(b"pass:word"))
    assert pair.url == "nats://host:1234"
    for link in (token, pair):
        assert "@" not in link.url
        assert link.has_login
        shown = repr(link) + str(link) + repr(link.target(NONCE))
        assert "s3cret" not in shown
        assert "word" not in shown.replace("password", "")
    plain = parse_link("cotal://host/main")
    assert not plain.has_login
    assert plain.target(NONCE).login is not None
    for wrong in ("", ":", ":pass", "ann:", "%", "a%4", "%00", "ann:%ff"):
        error = refused(f"cotal://{wrong}@host/main")
        assert error.problem is Problem.USERINFO
        assert "pass" not in str(error).replace("password", "")


@pytest.mark.req("C10-06")
def test_the_secure_scheme_asks_for_tls() -> None:
    made = ssl.create_default_context()
    secure = parse_link("cotals://host:4443/main").target(NONCE, context=lambda: made)
    assert secure.urls == ("nats://host:4443",)
    assert secure.tls is made
    default = parse_link("cotals://host/main").target(NONCE).tls
    assert default is not None
    assert default.verify_mode is ssl.CERT_REQUIRED
    assert default.check_hostname
    assert parse_link("cotal://host/main").target(NONCE).tls is None


@pytest.mark.req("C10-07")
def test_creds_exclude_every_login_of_the_link() -> None:
    for userinfo in ("token", "ann:pass"):
        with pytest.raises(InvalidLink) as error:
            parse_link(f"cotal://{userinfo}@host/main").target(NONCE, creds=True)
        assert error.value.problem is Problem.CREDS
    assert parse_link("cotal://host/main").target(NONCE, creds=True).login is None


@pytest.mark.req("C10-08")
def test_the_login_names_the_inbox() -> None:
    login = parse_link("cotal://token@host/main").target(NONCE).login
    assert login is not None
    assert login.connection == NONCE


def test_addresses_and_spaces() -> None:
    assert parse_link("cotal://[2001:DB8::0:1]:9/main").url == "nats://[2001:db8::1]:9"
    assert parse_link("cotal://127.0.0.1/main").url == "nats://127.0.0.1:4222"
    assert parse_link("cotal://h/my%20space%21").space == "my_space_"
