"""The template engine: what it accepts as a table row, and the four forms of every row."""

from __future__ import annotations

import pytest

from sidecar.rails.names import InvalidName, api, buckets, consumers, inboxes, subjects
from sidecar.rails.names.table import SECTIONS, TEMPLATES
from sidecar.rails.names.template import Kind, Template
from sidecar.rails.names.tokens import TAIL, WILDCARD
from tests.unit.rails.names.samples import sample

ROWS = [pytest.param(one, id=one.name) for one in TEMPLATES]


def test_the_table_has_every_row_once() -> None:
    assert len(TEMPLATES) > 240
    assert len({(one.kind, one.name) for one in TEMPLATES}) == len(TEMPLATES)
    assert all(one.use and one.row and section for section, rows in SECTIONS for one in rows)
    shared = {"<owner>.<actor>", "<owner>.<actor>.<uid>", "cotal_sessions_<space>"}
    texts = [(one.kind, one.text) for one in TEMPLATES if one.text not in shared]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("text", ["a.<Space>", "a.<space", "a.*", "a.>", "a.{space}", "a.<space...x>"])
def test_a_row_that_cannot_be_read_is_no_row(text: str) -> None:
    with pytest.raises(ValueError, match="no placeholder"):
        Template(Kind.SUBJECT, "bad", text, "", "")
    with pytest.raises(KeyError):
        Template(Kind.SUBJECT, "bad", "a.<unheard>", "", "")
    with pytest.raises(ValueError, match="stands last"):
        Template(Kind.SUBJECT, "bad", "a.<channel...>.b", "", "")


@pytest.mark.parametrize("template", ROWS)
def test_the_four_forms_of_every_row(template: Template) -> None:
    values = sample(template)
    name = template.build(**values)
    assert len(name) <= template.longest
    assert template.filter(**values) == name
    if not name.endswith(TAIL):
        assert template.subtree(**values) == f"{name}.>"
    if template.whole:
        for read in (template.split, template.parse):
            with pytest.raises(InvalidName, match="compared whole"):
                read(name)
        assert not template.fits(name)
        return
    assert template.split(name) == template.parse(name) == values
    for spoilt in (name + ".x.", "." + name, name.replace(".", "..", 1) if "." in name else name + ".y.z", ""):
        assert not template.fits(spoilt)


@pytest.mark.parametrize("template", ROWS)
def test_a_builder_takes_exactly_its_fields(template: Template) -> None:
    values = sample(template)
    with pytest.raises(TypeError):
        template.build(**values, unknown="x")
    for missing in values:
        with pytest.raises(TypeError):
            template.build(**{name: value for name, value in values.items() if name != missing})


@pytest.mark.req("C3-13", "C3-17")
@pytest.mark.parametrize("template", ROWS)
def test_no_builder_takes_a_wildcard(template: Template) -> None:
    values = sample(template)
    for name, one in template.fields.items():
        if one.grammar.name == "filter":
            continue
        for wild in (WILDCARD, TAIL, f"{values[name]}.{WILDCARD}", f"{values[name]}.{TAIL}", f"a{WILDCARD}"):
            with pytest.raises(InvalidName):
                template.build(**{**values, name: wild})


@pytest.mark.req("C3-08")
def test_split_takes_apart_and_parse_judges() -> None:
    subject = "cotal.my space.chat.a-b.*.x/y.z"
    values = {"space": "my space", "owner": "a-b", "actor": "*", "channel": "x/y.z"}
    assert subjects.CHAT.split(subject) == values
    with pytest.raises(InvalidName):
        subjects.CHAT.parse(subject)
    assert not subjects.CHAT.fits(subject)
    assert subjects.CHAT.fits("cotal.main.chat.local.alice.x")
    for other in (None, 5, b"cotal.main.chat.local.alice.x"):
        assert not subjects.CHAT.fits(other)


def test_an_absent_field_becomes_a_wildcard() -> None:
    assert subjects.CHAT.filter() == "cotal.*.chat.*.*.>"
    assert subjects.CHAT.filter(space="main", actor="a") == "cotal.main.chat.*.a.>"
    assert subjects.CHAT.subtree(space="main", actor="a") == "cotal.main.chat.*.a.>"
    assert subjects.CHAT.subtree(space="main") == "cotal.main.chat.>"
    assert subjects.DLV.subtree(space="main", uid="0" * 26) == f"cotal.main.dlv.*.*.{'0' * 26}.>"


def test_a_token_that_is_shared_is_given_whole_or_not_at_all() -> None:
    assert api.CONSUMER_INFO.filter(stream="DM_main") == "$JS.API.CONSUMER.INFO.DM_main.*"
    for form in (consumers.DM.filter, consumers.DM.subtree, inboxes.INBOX.filter):
        with pytest.raises(TypeError):
            form()
    with pytest.raises(TypeError):
        buckets.MEMBER_KEY.filter(owner="local")


def test_nothing_is_below_a_pattern_with_an_open_end() -> None:
    assert subjects.CHAT.subtree(space="main", owner="o", actor="a", channel="team") == "cotal.main.chat.o.a.team.>"
    with pytest.raises(InvalidName):
        subjects.CHAT.subtree(space="main", owner="o", actor="a", channel="team.>")


@pytest.mark.parametrize(("size", "fits"), [(254, True), (255, True), (256, False)])
def test_the_bound_of_a_stream_or_consumer_name(size: int, fits: bool) -> None:
    template = Template(Kind.CONSUMER, "long", "x" * (size - 4) + "<space>", "C8-27", "")
    name = "x" * (size - 4) + "main"
    assert template.fits(name) is fits
    for form in (template.build, template.filter):
        if fits:
            assert form(space="main") == name
        else:
            with pytest.raises(InvalidName):
                form(space="main")


def test_the_longest_names_of_the_table_fit_their_bounds() -> None:
    for template in TEMPLATES:
        unit = {name: one.grammar.longest for name, one in template.fields.items()}
        literal = len(template.text) - sum(len(piece) for piece in _placeholders(template))
        if template.kind in (Kind.STREAM, Kind.CONSUMER, Kind.BUCKET) and "bucket" not in unit:
            assert literal + sum(unit.values()) <= 255, template.name


def _placeholders(template: Template) -> list[str]:
    return ["<" + piece.partition(">")[0] + ">" for piece in template.text.split("<")[1:]]


@pytest.mark.parametrize("template", ROWS)
def test_a_huge_text_is_refused_by_its_length(template: Template) -> None:
    for text in ("cotal." * 2_000_000, "a" * 10_000_000):
        with pytest.raises(InvalidName) as caught:
            template.split(text)
        assert len(str(caught.value)) < 200
