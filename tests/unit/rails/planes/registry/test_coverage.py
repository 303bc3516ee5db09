"""What a recorded ceiling covers, against projections that were worked out by hand (C13.20-06..10)."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from sidecar.rails.names.endpoint import REQUESTS, SUBMISSIONS
from sidecar.rails.names.principals import Lifecycle, Principal
from sidecar.rails.planes.registry.coverage import MAX_COMBINATIONS, Coverage, Declared, Form, parts

UID, INSTANCE, SECOND = "a" * 26, "1" * 32, "2" * 32
ALICE = Lifecycle(Principal("local", "alice"), UID)
GENERATION = "0" * 31 + "1"
HERE = f"cotal.main.ep.one.dev_sample.echo.local.alice.{UID}.*"
NAMED = f"cotal.main.ep.inst.dev_sample.{{}}.echo.local.alice.{UID}.*"


class Rule(NamedTuple):
    allow: tuple[str, ...] | None
    deny: tuple[str, ...] = ()


def coverage(allow: tuple[str, ...] | None, *deny: str, generation: str | None = None) -> Coverage:
    return Coverage(Rule(allow, deny), "main", ALICE, generation)


def echo(*modes: str, journal: bool = False, instances: tuple[str, ...] = (INSTANCE,), name: str = "echo") -> Declared:
    return Declared(name, journal, modes, instances)


def forms(made: Coverage, one: Declared) -> list[dict[str, Any]]:
    """The values of the forms of one command."""
    projected = made.project("dev.sample", [one])
    assert not projected.unprojected
    return [form.value() for _, listed in projected.commands for form in listed]


@pytest.mark.req("C13.20-07")
def test_a_form_has_its_rail_its_route_and_every_nonce() -> None:
    assert forms(coverage((HERE,)), echo()) == [
        {"rail": "ep", "route": "one", "literals": {"nonce": []}, "covered": [{"nonce": "*"}]}
    ]


@pytest.mark.req("C13.20-07")
def test_the_ids_of_the_instances_are_literals_beside_those_of_the_patterns() -> None:
    made = coverage((NAMED.format(SECOND),))
    assert forms(made, echo()) == [
        {
            "rail": "ep",
            "route": "inst",
            "literals": {"instanceId": [INSTANCE, SECOND], "nonce": []},
            "covered": [{"instanceId": SECOND, "nonce": "*"}],
        }
    ]


@pytest.mark.req("C13.20-07", "C13.20-09")
def test_a_value_that_nobody_names_is_null_where_a_named_one_is_denied() -> None:
    made = coverage((NAMED.format("*"),), NAMED.format(SECOND))
    assert forms(made, echo()) == [
        {
            "rail": "ep",
            "route": "inst",
            "literals": {"instanceId": [INSTANCE, SECOND], "nonce": []},
            "covered": [{"instanceId": INSTANCE, "nonce": "*"}, {"instanceId": None, "nonce": "*"}],
        }
    ]


@pytest.mark.req("C13.20-07")
def test_every_value_of_a_position_is_a_star_also_with_literals() -> None:
    made = coverage((NAMED.format("*"), NAMED.format(SECOND)))
    assert forms(made, echo())[0]["covered"] == [{"instanceId": "*", "nonce": "*"}]


@pytest.mark.req("C13.20-07")
def test_a_targeted_form_has_the_positions_of_its_mode() -> None:
    root = "cotal.main.ep.one.dev_sample.echo"
    own = f"local.alice.{UID}.*"
    made = coverage((f"{root}.self.{own}", f"{root}.owner.local.{own}", f"{root}.exact.local.bob.*.{own}"))
    assert forms(made, echo("self", "owner", "exact")) == [
        {"rail": "ep", "route": "one", "mode": "self", "literals": {"nonce": []}, "covered": [{"nonce": "*"}]},
        {
            "rail": "ep",
            "route": "one",
            "mode": "owner",
            "literals": {"targetOwner": ["local"], "nonce": []},
            "covered": [{"targetOwner": "local", "nonce": "*"}],
        },
        {
            "rail": "ep",
            "route": "one",
            "mode": "exact",
            "literals": {"targetOwner": ["local"], "targetActor": ["bob"], "targetUid": [], "nonce": []},
            "covered": [{"targetOwner": "local", "targetActor": "bob", "targetUid": "*", "nonce": "*"}],
        },
    ]


@pytest.mark.req("C13.20-07")
def test_a_journal_command_has_the_submission_rail_alone() -> None:
    made = coverage(None, generation=GENERATION)
    assert forms(made, echo(journal=True)) == [{"rail": "epj", "literals": {}, "covered": [{}]}]


@pytest.mark.req("C13.20-07", "C13.20-11")
def test_the_issued_rail_is_covered_for_the_own_generation_alone() -> None:
    issued = REQUESTS["one", "", True]
    names = {"space": "main", "endpoint": "dev_sample", "command": "echo", "owner": "local", "actor": "alice"}
    allow = (issued.filter(**names, uid=UID, generation=GENERATION),)
    assert [one["rail"] for one in forms(coverage(allow, generation=GENERATION), echo())] == ["ep.v1"]
    assert forms(coverage(allow, generation="0" * 32), echo()) == []
    assert forms(coverage(allow), echo()) == []


@pytest.mark.req("C13.20-09", "C13.20-10")
def test_a_deny_wins_over_every_allow() -> None:
    assert forms(coverage((HERE, "cotal.>"), HERE, "cotal.main.ep.all.>", "cotal.*.ep.inst.>"), echo()) == []


@pytest.mark.req("C13.20-09", "C13.20-10")
def test_the_triple_of_another_caller_is_no_subject_of_the_form() -> None:
    foreign = HERE.replace("alice", "bob")
    assert forms(coverage((foreign, "cotal.main.epj.>", "cotal.other.>", "cotal")), echo()) == []


@pytest.mark.req("C13.20-09")
@pytest.mark.parametrize(
    ("pattern", "covered"),
    [
        (">", True),
        ("*.*.*.*.*.*.*.*.*.*", True),
        ("*.*.*.*.*.*.*.*.*", False),
        ("*.*.*.*.*.*.*.*.*.*.>", False),  # a tail is one token at least
        ("*.*.*.*.*.*.*.*.*.>", True),
        ("cotal.main.ep.>.echo", False),  # no pattern: its '>' is not last
        ("cotal.main.ep.o*.dev_sample.echo.>", False),  # a star within a token is a letter
    ],
)
def test_patterns_match_as_those_of_the_broker(pattern: str, covered: bool) -> None:
    routes = [one["route"] for one in forms(coverage((pattern,)), echo(instances=()))]
    assert ("one" in routes) is covered


@pytest.mark.req("C13.20-07")
def test_a_literal_that_no_subject_can_have_there_is_not_named() -> None:
    made = coverage((NAMED.format("*"), NAMED.format("Not-An-Instance")), NAMED.format("x"))
    assert forms(made, echo()) == [
        {
            "rail": "ep",
            "route": "inst",
            "literals": {"instanceId": [INSTANCE], "nonce": []},
            "covered": [{"instanceId": "*", "nonce": "*"}],
        }
    ]


def ids(count: int) -> tuple[str, ...]:
    return tuple(f"{number:032x}" for number in range(count))


@pytest.mark.req("C13.20-08")
@pytest.mark.parametrize(("more", "listed"), [(0, True), (1, False)])
def test_a_form_of_more_combinations_than_the_limit_is_not_projected(more: int, listed: bool) -> None:
    declared = echo(instances=ids(MAX_COMBINATIONS - 1 + more))
    projected = coverage((NAMED.format("*"), HERE)).project("dev.sample", [declared])
    assert projected.unprojected == (() if listed else ("echo",))
    assert bool(projected.commands) is listed


@pytest.mark.req("C13.20-08")
def test_a_smaller_declaration_of_the_same_name_is_not_listed_either() -> None:
    made = coverage((NAMED.format("*"), HERE, "cotal.main.epj.>"))
    many, few = echo(instances=ids(5_000)), echo(journal=True)
    other = echo(name="other", journal=True)
    projected = made.project("dev.sample", [many, few, other])
    assert projected.unprojected == ("echo",)
    assert [one.name for one, _ in projected.commands] == ["other"]


@pytest.mark.req("C13.20-08", "C13.20-09", "C13.20-10")
def test_a_form_above_the_limit_counts_when_one_of_its_own_subjects_is_permitted() -> None:
    many = echo(instances=ids(5_000))
    only, all_but = NAMED.format(SECOND), NAMED.format("*")
    assert coverage((only,)).project("dev.sample", [many]).unprojected == ("echo",)
    denied = coverage((only,), only).project("dev.sample", [many])
    assert (denied.unprojected, denied.commands) == ((), ())
    assert coverage((all_but,), only).project("dev.sample", [many]).unprojected == ("echo",)
    # What is below the limit is listed: the form above it is not covered.
    rest = coverage((HERE, only), only).project("dev.sample", [many])
    assert rest.unprojected == ()
    assert [form.route for form in rest.commands[0][1]] == ["one"]


@pytest.mark.req("C13.20-06")
def test_each_declaration_is_projected_over_its_own_instances() -> None:
    made = coverage((NAMED.format("*"),))
    first, second = echo(instances=(INSTANCE,)), echo("self", instances=(SECOND,))
    projected = made.project("dev.sample", [first, second])
    named = [(one.instances, form.literals["instanceId"]) for one, listed in projected.commands for form in listed]
    assert named == [((INSTANCE,), (INSTANCE,))]


@pytest.mark.req("C13.20-10", "C13.20-03")
def test_held_are_the_commands_with_one_permitted_request() -> None:
    made = coverage((HERE,))
    assert made.held("dev.sample", [echo(), echo(name="add")]) == {"echo"}
    assert made.held("dev.other", [echo()]) == frozenset()
    assert coverage((HERE,), HERE).held("dev.sample", [echo()]) == frozenset()
    # One instance is denied, the others are not.
    assert coverage((NAMED.format("*"),), NAMED.format(SECOND)).held("dev.sample", [echo()]) == {"echo"}
    # What the allow names is denied by a wider pattern, another of its values is not.
    narrow = (NAMED.format("*"),)
    assert coverage(narrow, NAMED.format("*")).held("dev.sample", [echo()]) == frozenset()


@pytest.mark.req("C13.20-09")
def test_a_ceiling_of_ten_thousand_patterns_is_decided_by_look_ups() -> None:
    """Pattern by pattern and combination by combination this would be hundreds of millions of comparisons."""
    named = [NAMED.format(f"{number:032x}") for number in range(4_000)]
    wild = [f"*.*.*.*.*.*.*.*.*.*.nonce{number:017d}" for number in range(6_000)]
    made = coverage((*named, *wild), *(f"*.*.*.*.*.{number:032x}.>" for number in range(0, 4_000, 2)))
    listed = [echo(name="echo"), *(echo(name=f"c{number}") for number in range(20))]
    projected = made.project("dev.sample", listed)
    assert projected.unprojected[0] == "c0"  # 6,000 nonces are named for every command
    assert made.held("dev.sample", [echo()]) == {"echo"}
    small = coverage(tuple(named), *(NAMED.format(f"{number:032x}") for number in range(0, 4_000, 2)))
    (form,) = small.project("dev.sample", [echo(instances=())]).commands[0][1]
    assert isinstance(form, Form)
    assert len(form.covered) == 2_000


def test_the_rails_are_those_of_the_name_table() -> None:
    """A form that the table has is projected: nothing is left out by a list of its own."""
    modes = tuple(mode for mode in SUBMISSIONS if mode)
    made = coverage(None, generation=GENERATION)
    found = {(one["rail"], one["route"], one.get("mode", "")) for one in forms(made, echo(*modes))}
    wanted = {("ep.v1" if issued else "ep", route, mode) for route, mode, issued in REQUESTS if mode}
    assert found == wanted


def test_pieces_of_a_long_list_keep_what_has_one_name_together() -> None:
    many = [echo(name=f"c{number // 3:03d}", instances=(f"{number:032x}",)) for number in range(300)]
    pieces = list(parts(many, 8))
    assert [one for piece in pieces for one in piece] == many
    assert [len(piece) for piece in pieces] == [9] * 33 + [3]
    names = [{one.name for one in piece} for piece in pieces]
    assert sum(map(len, names)) == len(set().union(*names))
    made = coverage((NAMED.format("*").replace("echo", "*"),))
    whole = made.project("dev.sample", many)
    assert whole.commands == tuple(one for piece in pieces for one in made.project("dev.sample", piece).commands)
    assert list(parts([])) == []
