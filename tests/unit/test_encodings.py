"""Encodings that rows of the appendices fix: base32 of tokens, and the bytes under a digest."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.base.secret import Secret
from sidecar.base.strictjson import JsonValue, canonical
from sidecar.rails.names import headers
from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import CHAT_SESSION_ACTOR, derive_owner

ALPHABET = set("abcdefghijklmnopqrstuvwxyz234567")


@pytest.mark.req("CC-02")
@given(st.binary(min_size=32, max_size=40), st.text(min_size=1, max_size=40))
def test_an_owner_token_is_lower_case_base32_without_padding(secret: bytes, identity: str) -> None:
    owner = derive_owner(Secret(secret), identity)
    assert owner[:2] == "u_"
    assert len(owner) == 28
    assert set(owner[2:]) <= ALPHABET


@pytest.mark.req("CC-02")
def test_a_chat_actor_is_of_the_same_alphabet() -> None:
    assert CHAT_SESSION_ACTOR.build(base32="a2" * 13) == "chat_" + "a2" * 13
    for wrong in ("A2" * 13, "a1" * 13, "a8" * 13, "a=" * 13, "a2" * 12):
        with pytest.raises(InvalidName):
            CHAT_SESSION_ACTOR.build(base32=wrong)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
)


def shuffled(value: JsonValue, order: random.Random) -> JsonValue:
    if isinstance(value, dict):
        names = list(value)
        order.shuffle(names)
        return {name: shuffled(value[name], order) for name in names}
    return [shuffled(one, order) for one in value] if isinstance(value, list) else value


@pytest.mark.req("CC-03")
@given(_JSON, st.randoms(use_true_random=False))
def test_a_digest_does_not_depend_on_the_order_of_members(value: JsonValue, order: random.Random) -> None:
    first, second = (hashlib.sha256(canonical(one)).digest() for one in (value, shuffled(value, order)))
    assert first == second


@pytest.mark.req("CC-03")
def test_the_digest_of_a_row_is_over_its_canonical_bytes() -> None:
    assert canonical({"b": 1, "a": [1.0, "ü"]}) == '{"a":[1,"ü"],"b":1}'.encode()


@pytest.mark.req("C11-17")
def test_names_of_our_own_are_below_our_own_domain() -> None:
    own = [value for name, value in vars(headers).items() if name.startswith(("DETAIL_", "TRAIT_"))]
    assert own
    assert all(value.startswith("ai.cotal.") for value in own)
