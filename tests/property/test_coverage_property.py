"""Projections of ceilings against an oracle that asks the pattern arithmetic about every subject."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.rails.names.endpoint import REQUESTS, ROUTES, SUBMISSIONS
from sidecar.rails.names.grants import covers
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.registry.coverage import EVERY, POSITIONS, Coverage, Declared

UID, GENERATION = "u" * 26, "0" * 32
ALICE = Lifecycle(Principal("local", "alice"), UID)
GIVEN = {"space": "s", "endpoint": "e", "command": "c", "owner": "local", "actor": "alice", "uid": UID}
VALUES = {
    "instance": ("i" * 26, "j" * 26),
    "to_owner": ("local", "o2"),
    "to_actor": ("bob", "eve"),
    "to_uid": ("v" * 26, "w" * 26),
    "nonce": ("n" * 22, "m" * 22),
}
REST = {
    "instance": "z" * 26,
    "to_owner": "nobody",
    "to_actor": "nobody",
    "to_uid": "z" * 26,
    "nonce": "z" * 22,
}
"""A value of each position that no generated pattern names."""


class Rule(NamedTuple):
    allow: tuple[str, ...] | None
    deny: tuple[str, ...]


FORMS = {
    **{("ep.v1" if issued else "ep", route, mode): one for (route, mode, issued), one in REQUESTS.items()},
    **{("epj", "", mode): one for mode, one in SUBMISSIONS.items()},
}


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """A pattern near the subjects of the command: some tokens are stars, and it may end early in a tail."""
    key = draw(st.sampled_from(sorted(FORMS)))
    template = FORMS[key]
    named = {**GIVEN, "generation": GENERATION}
    values = {
        field: draw(st.sampled_from(VALUES[field]))
        if field in VALUES
        else named[field]
        if field != "caller_owner"
        else "local"
        for field in template.fields
    }
    tokens = template.build(**values).split(".")
    stars = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    tokens = ["*" if star else token for star, token in zip(stars, tokens, strict=True)]
    cut = draw(st.integers(1, len(tokens) + 4))
    return ".".join([*tokens[:cut], ">"] if cut < len(tokens) else tokens)


def permitted(rule: Rule, subject: str) -> bool:
    allowed = rule.allow is None or any(covers(one, subject) for one in rule.allow)
    return allowed and not any(covers(one, subject) for one in rule.deny)


def oracle(rule: Rule, declared: Declared) -> Iterator[tuple[tuple[str, str, str], tuple[str, ...]]]:
    """(rail, route, mode), and one permitted value for each position, for every choice of values."""
    for (rail, route, mode), template in FORMS.items():
        if (rail == "epj") is not declared.journal or mode not in (declared.modes or ("",)):
            continue
        positions = [field for field in template.fields if field in POSITIONS]
        for row in itertools.product(*((*VALUES[one], REST[one]) for one in positions)):
            values = dict(zip(positions, row, strict=True))
            for field in template.fields:
                values.setdefault(field, {**GIVEN, "generation": GENERATION}.get(field, "local"))
            if permitted(rule, template.build(**values)):
                yield (rail, route, mode), row


RULES = st.builds(
    Rule,
    st.none() | st.lists(patterns(), max_size=6).map(tuple),
    st.lists(patterns(), max_size=5).map(tuple),
)
DECLARED = st.builds(
    lambda journal, modes, instances: Declared("c", journal, tuple(modes), tuple(instances)),
    st.booleans(),
    st.lists(st.sampled_from(["self", "owner", "exact"]), unique=True),
    st.lists(st.sampled_from(VALUES["instance"]), unique=True),
)


@pytest.mark.req("C13.20-06", "C13.20-07", "C13.20-09", "C13.20-10")
@settings(max_examples=300, deadline=None)
@given(RULES, DECLARED)
def test_a_projection_says_of_every_subject_what_the_patterns_say(rule: Rule, declared: Declared) -> None:
    coverage = Coverage(rule, "s", ALICE, GENERATION)
    projection = coverage.project("e", [declared])
    assert projection.unprojected == ()
    said = set()
    for _, forms in projection.commands:
        for form in forms:
            template = FORMS[form.rail, form.route, form.mode]
            positions = [field for field in template.fields if field in POSITIONS]
            assert list(form.literals) == [POSITIONS[one] for one in positions]
            for row in form.covered:
                choices = []
                for one in positions:
                    every = (*VALUES[one], REST[one])
                    unnamed = tuple(v for v in every if v not in form.literals[POSITIONS[one]])
                    choice = row[POSITIONS[one]]
                    # A literal of another position may stand here too; the oracle does not ask for it.
                    own = tuple(value for value in every if value == choice)
                    choices.append(every if choice == EVERY else unnamed if choice is None else own)
                said |= {((form.rail, form.route, form.mode), one) for one in itertools.product(*choices)}
    wanted = set(oracle(rule, declared))
    assert said == wanted
    assert coverage.held("e", [declared]) == ({"c"} if wanted else set())


def test_the_routes_of_the_oracle_are_all() -> None:
    assert {route for _, route, _ in FORMS} == {*ROUTES, ""}
