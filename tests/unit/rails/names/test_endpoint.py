"""Request and reply subjects of the endpoint rails (13.2)."""

from __future__ import annotations

import pytest

from sidecar.rails.names import InvalidName, endpoint
from sidecar.rails.names.endpoint import REPLIES, REQUESTS, SUBMISSIONS, parse_request, parse_submission
from sidecar.rails.names.grants import overlaps
from sidecar.rails.names.template import Kind, Template
from sidecar.rails.names.tokens import MODES
from tests.unit.rails.names.samples import UID, sample

NONCE = "n" * 22
GENERATION = "0123456789abcdef" * 2
ARITY = {"": 10, "self": 11, "owner": 12, "any": 12, "child": 12, "ledger": 12, "handle": 14, "exact": 14}
CALLER = {"owner": "local", "actor": "alice", "uid": UID, "nonce": NONCE}


@pytest.mark.req("C13.2-20", "C13.2-21", "C13.2-25", "C13.2-37")
@pytest.mark.parametrize(("route", "mode", "issued"), REQUESTS)
def test_every_request_form_has_its_arity_and_parses_back(route: str, mode: str, issued: bool) -> None:
    template = REQUESTS[route, mode, issued]
    subject = template.build(**sample(template))
    extra = (route == "inst") + 2 * issued
    assert len(subject.split(".")) == ARITY[mode] + extra
    found = parse_request(subject)
    assert (found.route, found.mode, found.issued) == (route, mode, issued)
    assert found.values == sample(template)
    assert found.sender == "local.alice"
    assert len(found.target) == {10: 0, 11: 0, 12: 1, 14: 3}[ARITY[mode]]


def test_the_table_is_the_whole_product() -> None:
    assert len(REQUESTS) == 3 * 8 * 2
    assert {mode for _, mode, _ in REQUESTS} == {"", *MODES}
    assert set(SUBMISSIONS) == {"", *MODES}


@pytest.mark.req("C13.2-20", "C13.2-25", "C13.2-45", "C13.2-28")
def test_the_subjects_of_the_table() -> None:
    common = {"space": "main", "endpoint": "manager", "command": "status", **CALLER}
    tail = f"local.alice.{UID}"
    assert REQUESTS["one", "", False].build(**common) == f"cotal.main.ep.one.manager.status.{tail}.{NONCE}"
    exact = {"to_owner": "local", "to_actor": "bob", "to_uid": UID}
    assert (
        REQUESTS["all", "exact", False].build(**common, **exact)
        == f"cotal.main.ep.all.manager.status.exact.local.bob.{UID}.{tail}.{NONCE}"
    )
    assert (
        REQUESTS["inst", "owner", True].build(**common, instance=UID, to_owner="local", generation=GENERATION)
        == f"cotal.main.ep.v1.inst.manager.{UID}.status.owner.local.{tail}.{GENERATION}.{NONCE}"
    )
    assert SUBMISSIONS["self"].build(
        space="main", endpoint="manager", command="status", owner="local", actor="alice", uid=UID
    ) == (f"cotal.main.epj.manager.status.self.{tail}")


@pytest.mark.req("C13.2-28", "C13.2-45")
def test_the_reply_is_derived_on_the_rail_of_the_request() -> None:
    plain = parse_request(f"cotal.main.ep.one.manager.status.local.alice.{UID}.{NONCE}")
    assert plain.reply(UID, 3) == f"cotal.main.ep.reply.manager.{UID}.3.local.alice.{UID}.{NONCE}"
    issued = parse_request(f"cotal.main.ep.v1.all.manager.status.local.alice.{UID}.{GENERATION}.{NONCE}")
    assert issued.reply(UID, 1) == f"cotal.main.ep.v1.reply.manager.{UID}.1.local.alice.{UID}.{GENERATION}.{NONCE}"
    assert REPLIES[True].parse(issued.reply(UID, 1))["generation"] == GENERATION
    for epoch in (-1, 2**53):
        with pytest.raises(InvalidName):
            plain.reply(UID, epoch)


@pytest.mark.req("C13.2-21", "C13.2-22")
@pytest.mark.parametrize(("route", "mode", "issued"), REQUESTS)
def test_one_token_more_or_less_is_no_request(route: str, mode: str, issued: bool) -> None:
    template = REQUESTS[route, mode, issued]
    tokens = template.build(**sample(template)).split(".")
    for at in range(len(tokens)):
        for changed in (
            tokens[:at] + tokens[at + 1 :],
            [*tokens[:at], "x", *tokens[at:]],
            [*tokens[:at], "", *tokens[at:]],
        ):
            if mode == "self" and REQUESTS[route, "", issued].fits(".".join(changed)):
                assert parse_request(".".join(changed)).mode == ""  # without one token it is the untargeted form
                continue
            with pytest.raises(InvalidName):
                parse_request(".".join(changed))


@pytest.mark.req("C13.2-22")
@pytest.mark.parametrize(
    "subject",
    [
        "",
        "cotal",
        "cotal.main.ep",
        "cotal.main.ep.v1",
        "cotal.main.ep.two.manager.status",
        pytest.param(f"cotal.main.ep.one.manager.status.local.alice.{UID}.{NONCE}" * 20, id="long"),
        f"cotal.main.ep.one.manager.status.self.alice.{UID}.{NONCE}",
        f"cotal.main.chat.one.manager.status.local.alice.{UID}.{NONCE}",
        f"cotal.main.ep.one.manager.Status.local.alice.{UID}.{NONCE}",
        f"cotal.main.ep.one.manager.status.local.alice.{UID}.{NONCE[:-1]}",
        f"cotal.main.ep.v1.one.manager.status.local.alice.{UID}.{GENERATION.upper()}.{NONCE}",
        f"cotal.main.ep.reply.manager.{UID}.1.local.alice.{UID}.{NONCE}",
    ],
)
def test_what_is_no_request(subject: str) -> None:
    with pytest.raises(InvalidName):
        parse_request(subject)


@pytest.mark.req("C13.2-25")
@pytest.mark.parametrize("generation", ["", "f" * 31, "f" * 33, "F" * 32, "g" * 32, "*"])
def test_an_issued_rail_carries_a_generation_of_32_digits(generation: str) -> None:
    for template in (REQUESTS["one", "", True], REPLIES[True]):
        values = sample(template)
        assert [*template.fields].index("generation") == [*template.fields].index("uid") + 1
        with pytest.raises(InvalidName):
            template.build(**{**values, "generation": generation})


@pytest.mark.req("C13.2-21")
@pytest.mark.parametrize("mode", MODES)
def test_no_caller_is_called_like_a_mode(mode: str) -> None:
    template = REQUESTS["one", "", False]
    with pytest.raises(InvalidName):
        template.build(**{**sample(template), "owner": mode})


@pytest.mark.req("C13.2-60")
@pytest.mark.parametrize("mode", SUBMISSIONS)
def test_a_submission_carries_the_target_block_of_its_mode(mode: str) -> None:
    template = SUBMISSIONS[mode]
    subject = template.build(**sample(template))
    found = parse_submission(subject)
    assert (found.mode, found.values) == (mode, sample(template))
    for changed in (subject + ".x", subject.rpartition(".")[0], "x" * 2000, subject.replace("epj", "epf")):
        with pytest.raises(InvalidName):
            parse_submission(changed)


@pytest.mark.req("C13.2-10")
@pytest.mark.parametrize(("size", "fits"), [(1023, True), (1024, True), (1025, False)])
def test_the_bound_of_a_rail_subject(size: int, fits: bool) -> None:
    assert all(one.longest == 1024 for one in (*REQUESTS.values(), *REPLIES.values(), *SUBMISSIONS.values()))
    # No valid tokens reach the bound, so that one long literal stands in for them.
    template = Template(Kind.SUBJECT, "long", "x" * (size - 5) + ".<space>", "C13.2-10", "", longest=1024)
    subject = "x" * (size - 5) + ".main"
    if fits:
        assert template.build(space="main") == subject
        assert template.parse(subject) == {"space": "main"}
    else:
        with pytest.raises(InvalidName):
            template.build(space="main")
        with pytest.raises(InvalidName):
            template.parse(subject)


@pytest.mark.req("C13.2-10")
def test_an_over_long_space_raises_before_anything_is_published() -> None:
    template = REQUESTS["one", "", False]
    with pytest.raises(InvalidName):
        template.build(**{**sample(template), "space": "s" * 1024})


def test_the_permission_rows_of_both_sides() -> None:
    caller = {"space": "main", "owner": "local", "actor": "alice", "uid": UID}
    serving: dict[str, str | int] = {"space": "main", "endpoint": "manager", "instance": UID, "epoch": 2}
    tail = f"local.alice.{UID}"
    assert REPLIES[False].filter(**caller) == f"cotal.main.ep.reply.*.*.*.{tail}.*"
    assert (
        REPLIES[True].filter(**caller, generation=GENERATION) == f"cotal.main.ep.v1.reply.*.*.*.{tail}.{GENERATION}.*"
    )
    assert REPLIES[False].filter(**serving) == f"cotal.main.ep.reply.manager.{UID}.2.*.*.*.*"
    assert REPLIES[True].filter(**serving) == f"cotal.main.ep.v1.reply.manager.{UID}.2.*.*.*.*.*"
    command = {"endpoint": "manager", "command": "spawn"}
    assert REQUESTS["one", "", False].subtree(space="main", **command) == "cotal.main.ep.one.manager.spawn.>"
    assert (
        REQUESTS["inst", "", True].subtree(space="main", instance=UID, **command)
        == f"cotal.main.ep.v1.inst.manager.{UID}.spawn.>"
    )
    assert REQUESTS["one", "", False].filter(**caller, **command) == f"cotal.main.ep.one.manager.spawn.{tail}.*"
    assert REQUESTS["one", "owner", False].filter(**caller, **command, to_owner="local") == (
        f"cotal.main.ep.one.manager.spawn.owner.local.{tail}.*"
    )


@pytest.mark.req("C13.2-36")
def test_no_row_of_one_mode_matches_a_subject_of_another() -> None:
    caller = {"space": "main", "endpoint": "manager", "command": "spawn", "owner": "local", "actor": "a", "uid": UID}
    for route in endpoint.ROUTES:
        for issued in (False, True):
            rows = {}
            for mode in ("", *MODES):
                template = REQUESTS[route, mode, issued]
                own = {"to_owner": "local"} if "to_owner" in template.fields else {}
                instance = {"instance": UID} if route == "inst" else {}
                rows[mode] = template.filter(**caller, **own, **instance)
            clashes = [(a, b) for a in rows for b in rows if a != b and overlaps(rows[a], rows[b])]
            assert clashes == []
