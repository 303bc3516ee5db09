"""Every template with generated values: round trips, injectivity, patterns, and arbitrary text."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.rails.names import InvalidName, api, tokens
from sidecar.rails.names.endpoint import REQUESTS, parse_request
from sidecar.rails.names.grants import admitted, check_row, covers, overlaps, subscribe_denies
from sidecar.rails.names.principals import Lifecycle, Principal, surfaces
from sidecar.rails.names.subjects import CHAT, INST, SVC, delivery_of
from sidecar.rails.names.table import TEMPLATES
from sidecar.rails.names.template import Kind, Template
from sidecar.rails.names.tokens import GRAMMARS, Grammar

ALL = st.sampled_from(TEMPLATES)
SPLIT = st.sampled_from([one for one in TEMPLATES if not one.whole])
TWO_WAY = [pytest.param(one, id=one.name) for one in TEMPLATES if not one.whole]
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]
QUICK = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
THOROUGH = settings(max_examples=400, deadline=None, suppress_health_check=SLOW)
NOISE = st.text("ab_-.*>$=/ :\n\0é\U0001f600", max_size=40) | st.text(max_size=60)


@cache
def values_of(grammar: Grammar) -> st.SearchStrategy[str]:
    return st.from_regex(grammar.shape, fullmatch=True).filter(grammar.accepts)


@cache
def fields_of(template: Template) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({name: values_of(one.grammar) for name, one in template.fields.items()})


def wild(name: str) -> bool:
    return any(token in ("*", ">") for token in name.split("."))


@pytest.mark.req("C2-09", "C3-05")
@pytest.mark.parametrize("template", TWO_WAY)
@given(data=st.data())
@QUICK
def test_parse_is_the_inverse_of_build(template: Template, data: st.DataObject) -> None:
    values = data.draw(fields_of(template))
    name = template.build(**values)
    assert template.split(name) == template.parse(name) == values
    assert template.build(**template.parse(name)) == name


@pytest.mark.req("C3-13", "C3-17")
@given(template=ALL, data=st.data())
@THOROUGH
def test_no_wildcard_comes_out_of_a_builder(template: Template, data: st.DataObject) -> None:
    values = data.draw(fields_of(template))
    built = template.build(**values)
    assert len(built) <= template.longest
    if "filter" not in values:
        assert not wild(built)
    name = data.draw(st.sampled_from(sorted(values))) if values else None
    if name is None or template.fields[name].grammar.name == "filter":
        return
    spoilt = data.draw(st.sampled_from(["*", ">", "{}.*", "{}.>", "*.{}", "{}*", "{}>", "{}.{}.>"])).replace(
        "{}", values[name]
    )
    with pytest.raises(InvalidName):
        template.build(**{**values, name: spoilt})


@given(template=ALL, data=st.data())
@THOROUGH
def test_patterns_cover_what_is_built_from_the_same_values(template: Template, data: st.DataObject) -> None:
    values = data.draw(fields_of(template))
    if template.kind not in (Kind.SUBJECT, Kind.KEY, Kind.API) or "filter" in values:
        return
    alone = [part.fields[0].name for part in template.parts if part.alone]
    left_out = data.draw(st.sets(st.sampled_from(alone))) if alone else set()
    given_values = {name: value for name, value in values.items() if name not in left_out}
    built = template.build(**values)
    pattern = template.filter(**given_values)
    assert covers(pattern, built)
    assert wild(pattern) is bool(left_out)
    below = template.subtree(**given_values)
    assert below == ">" or below.endswith(".>")
    assert covers(below, built) or below == f"{pattern}.>"
    if template.kind is Kind.SUBJECT and "space" in given_values:
        assert check_row(pattern) == pattern
        assert check_row(below) == below


@pytest.mark.parametrize("template", [pytest.param(one, id=one.name) for one in TEMPLATES if one.whole])
@given(data=st.data())
@QUICK
def test_two_whole_names_are_equal_only_if_their_values_are(template: Template, data: st.DataObject) -> None:
    one, two = data.draw(fields_of(template)), data.draw(fields_of(template))
    if template.name == "run replay":  # both ids may hold the separator; a takeover id is random and never reused
        return
    if template.name == "record writer":  # always of one space
        two = {**two, "space": one["space"]}
    assert (template.build(**one) == template.build(**two)) is (one == two)


@given(template=ALL, text=NOISE)
@THOROUGH
def test_arbitrary_text_is_parsed_or_refused(template: Template, text: str) -> None:
    try:
        values = template.parse(text)
    except InvalidName:
        return
    assert template.build(**values) == text


@given(template=SPLIT, data=st.data())
@THOROUGH
def test_a_spoilt_name_is_parsed_or_refused(template: Template, data: st.DataObject) -> None:
    name = template.build(**data.draw(fields_of(template)))
    at = data.draw(st.integers(0, len(name)))
    width = data.draw(st.integers(0, 2))
    spoilt = name[:at] + data.draw(st.text(".*>-_=/$aA0 \n", max_size=3)) + name[at + width :]
    try:
        values = template.parse(spoilt)
    except InvalidName:
        return
    assert template.build(**values) == spoilt


@pytest.mark.req("C3-07", "C3-08", "C3-09")
@given(
    text=NOISE
    | st.lists(
        st.sampled_from(["cotal", "main", "chat", "inst", "svc", "u_" + "a" * 26, "local", "", "*"]), max_size=9
    ).map(".".join)
)
@THOROUGH
def test_a_delivery_is_read_like_its_template_splits(text: str) -> None:
    found = delivery_of(text)
    fits = {}
    for template in (CHAT, INST, SVC):
        try:
            fits[template.parts[2].literals[0]] = template.split(text)
        except InvalidName:
            continue
    if found is None:
        assert fits == {}
        return
    values = fits.pop(found.kind)
    assert fits == {}
    assert (found.space, found.owner, found.actor) == (values["space"], values["owner"], values["actor"])
    rest = {"chat": "{channel}", "inst": "{to_owner}.{to_actor}", "svc": "{role}"}[found.kind].format(**values)
    assert found.rest == rest
    assert found.surfaces is surfaces(values["owner"])


@pytest.mark.req("C2-09")
@given(owner=values_of(GRAMMARS["owner"]), actor=values_of(GRAMMARS["actor"]), uid=values_of(GRAMMARS["uid"]))
@THOROUGH
def test_principals_round_trip_in_both_forms(owner: str, actor: str, uid: str) -> None:
    one = Lifecycle(Principal(owner, actor), uid)
    assert Principal.from_dot(one.principal.dot) == Principal.from_dash(one.principal.dash) == one.principal
    assert Lifecycle.from_dot(one.dot) == Lifecycle.from_dash(one.dash) == one


@pytest.mark.req("C3-02", "C3-11", "C3-12")
@given(text=NOISE)
@THOROUGH
def test_what_is_sanitized_is_a_token_and_stays_as_it_is(text: str) -> None:
    token = tokens.sanitize(text)
    assert GRAMMARS["space"].accepts(token) or len(token) > 64
    assert tokens.sanitize(token) == token
    for read, check in ((tokens.publish_channel, "check"), (tokens.subscribe_channel, "check_pattern")):
        try:
            channel = read(text)
        except InvalidName:
            continue
        assert getattr(GRAMMARS["channel"], check)(channel) == channel
        assert read(channel) == channel


@pytest.mark.req("C13.2-21", "C13.2-22")
@given(data=st.data())
@THOROUGH
def test_a_request_subject_has_one_reading(data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(REQUESTS)))
    subject = REQUESTS[key].build(**data.draw(fields_of(REQUESTS[key])))
    found = parse_request(subject)
    assert (found.route, found.mode, found.issued) == key
    words = subject.split(".")
    at = data.draw(st.integers(0, len(words)))
    spoilt = ".".join(
        [
            *words[:at],
            *data.draw(st.lists(st.sampled_from(["self", "any", "exact", "v1", "x", ""]), max_size=2)),
            *words[at + 1 :],
        ]
    )
    try:
        other = parse_request(spoilt)
    except InvalidName:
        return
    assert REQUESTS[other.route, other.mode, other.issued].build(**other.values) == spoilt


PATTERNS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4).flatmap(
    lambda head: st.sampled_from([".".join(head), ".".join([*head, ">"])])
)
SUBJECTS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5).map(".".join)


@given(one=PATTERNS, other=PATTERNS, subject=SUBJECTS)
@THOROUGH
def test_containment_and_overlap_agree_with_matching(one: str, other: str, subject: str) -> None:
    both = covers(one, subject) and covers(other, subject)
    if both:
        assert overlaps(one, other)
    if covers(one, other):
        assert not covers(other, subject) or covers(one, subject)
        assert overlaps(one, other)
    assert covers(one, subject) == admitted(one, subject)


@pytest.mark.req("C3-12")
@given(
    rows=st.lists(PATTERNS.map("cotal.main.chat.".__add__), max_size=4),
    subject=SUBJECTS.map("cotal.main.chat.".__add__),
    tail=PATTERNS,
)
@THOROUGH
def test_with_its_denies_a_list_reads_exactly_what_it_allows(rows: list[str], subject: str, tail: str) -> None:
    try:
        denies = subscribe_denies(rows)
    except InvalidName:
        return
    subscription = f"cotal.main.chat.{tail}"
    allowed = any(covers(row, subject) for row in rows)
    denied = any(covers(deny, subject) for deny in denies)
    assert not (allowed and denied)
    if any(admitted(row, subscription) for row in rows) and covers(subscription, subject):
        assert allowed is not denied


def test_reserved_roots_are_no_root_of_a_space() -> None:
    assert not any(
        api.reserved(CHAT.build(space=space, owner="o", actor="a", channel="c")) for space in ("JS", "_INBOX", "KV")
    )
