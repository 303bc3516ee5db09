"""When a connection tries again, and when it gives up."""

from __future__ import annotations

import itertools

import pytest

from sidecar.rails.connection.faults import Fault, Said
from sidecar.rails.connection.overlap import Overlap
from sidecar.rails.connection.policy import CONTROL_LINE_HINT, Again, Event, Policy, Recovery, State, after

POLICY = Policy(first_wait=1.0, longest_wait=8.0, settled=5.0, attempts=4, refusals=3, drops=2)
LEGAL = {
    (State.CONNECTING, Event.UP): State.CONNECTED,
    (State.CONNECTING, Event.DOWN): State.WAITING,
    (State.WAITING, Event.RETRY): State.CONNECTING,
    (State.CONNECTED, Event.DUE): State.RENEWING,
    (State.CONNECTED, Event.DOWN): State.WAITING,
    (State.RENEWING, Event.UP): State.CONNECTED,
    (State.RENEWING, Event.KEPT): State.CONNECTED,
    (State.RENEWING, Event.DOWN): State.WAITING,
}


def down(recovery: Recovery, fault: Fault, now: float = 0.0) -> Again | Said:
    return recovery.down(Said(fault, fault.value), now, 0.0)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair_of_state_and_event_has_its_answer(state: State, event: Event) -> None:
    if event is Event.CLOSE:
        assert after(state, event) is State.CLOSED
    elif event is Event.GIVE_UP and state not in (State.STOPPED, State.CLOSED):
        assert after(state, event) is State.STOPPED
    elif (state, event) in LEGAL:
        assert after(state, event) is LEGAL[state, event]
    else:
        with pytest.raises(ValueError, match=event.name):
            after(state, event)


def test_waits_double_up_to_a_bound_and_are_spread_over_their_upper_half() -> None:
    assert [POLICY.wait(n, 0.0) for n in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert POLICY.wait(10**6, 1.0) == 8.0
    assert POLICY.wait(1, 0.5) == 0.75


def test_credentials_are_replaced_ahead_of_their_end() -> None:
    policy = Policy(renew_ahead=60.0)
    assert policy.renew_at(0.0, 1000.0) == 940.0
    assert policy.renew_at(0.0, 240.0) == 180.0
    assert policy.renew_at(0.0, 8.0) == 6.0
    assert policy.renew_at(10.0, 5.0) == 5.0


def test_the_backoff_begins_anew_only_after_a_link_that_lasted() -> None:
    recovery = Recovery(POLICY)
    assert [down(recovery, Fault.UNREACHABLE) for _ in range(2)] == [Again(0.5, False), Again(1.0, False)]
    recovery.up(10.0)
    assert down(recovery, Fault.LOST, 14.9) == Again(2.0, False)
    recovery.up(20.0)
    assert down(recovery, Fault.LOST, 25.0) == Again(0.5, False)


@pytest.mark.req("C13.12-03")
def test_attempts_are_bounded() -> None:
    recovery = Recovery(POLICY)
    assert [type(down(recovery, Fault.UNREACHABLE)) for _ in range(3)] == [Again] * 3
    assert down(recovery, Fault.UNREACHABLE) == Said(Fault.UNREACHABLE, "unreachable")


@pytest.mark.req("C13.12-03")
def test_connections_dropped_before_the_login_name_the_control_line() -> None:
    recovery = Recovery(POLICY)
    assert isinstance(down(recovery, Fault.DROPPED), Again)
    assert isinstance(down(recovery, Fault.UNREACHABLE), Again)
    assert isinstance(down(recovery, Fault.DROPPED), Again)
    assert down(recovery, Fault.DROPPED) == Said(Fault.MAX_CONTROL_LINE, CONTROL_LINE_HINT)


@pytest.mark.req("C13.12-03")
@pytest.mark.parametrize(
    ("fault", "told", "most"), [(Fault.DROPPED, Fault.MAX_CONTROL_LINE, 10), (Fault.LOST, Fault.LOST, 1000)]
)
def test_without_other_figures_both_end_too(fault: Fault, told: Fault, most: int) -> None:
    recovery = Recovery(Policy())
    answers = list(
        itertools.takewhile(lambda one: isinstance(one, Again), (down(recovery, fault) for _ in range(most)))
    )
    assert 1 < len(answers) < most
    stopped = down(recovery, fault)
    assert isinstance(stopped, Said)
    assert stopped.fault is told


@pytest.mark.parametrize("fault", [Fault.EXPIRED, Fault.REVOKED, Fault.ACCOUNT, Fault.AUTHORIZATION])
def test_refused_logins_are_bounded_and_the_first_word_is_the_reason(fault: Fault) -> None:
    recovery = Recovery(POLICY)
    recovery.up(0.0)
    assert down(recovery, fault, 9.0) == Again(0.5, True)
    assert [type(down(recovery, Fault.AUTHORIZATION)) for _ in range(2)] == [Again] * 2
    stopped = down(recovery, Fault.AUTHORIZATION)
    assert isinstance(stopped, Said)
    assert stopped.fault is fault


def test_a_login_that_works_forgives_the_refusals() -> None:
    recovery = Recovery(Policy(refusals=2))
    for _ in range(5):
        assert isinstance(down(recovery, Fault.AUTHORIZATION), Again)
        recovery.up(0.0)


def test_what_nothing_heals_stops_at_once() -> None:
    assert down(Recovery(POLICY), Fault.OLD_BROKER) == Said(Fault.OLD_BROKER, "old_broker")
    assert down(Recovery(POLICY), Fault.CREDENTIALS_REFUSED) == Said(Fault.CREDENTIALS_REFUSED, "credentials_refused")
    recovery = Recovery(POLICY)
    recovery.up(0.0)
    down(recovery, Fault.REVOKED)
    assert down(recovery, Fault.CREDENTIALS_REFUSED) == Said(Fault.REVOKED, "revoked")


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("ooonnn"))))
def test_two_links_that_carry_the_same_give_one_stream(order: tuple[str, ...]) -> None:
    for messages in ("abc", "aab", "aba", "aaa"):
        overlap = Overlap()
        feeds = {"o": iter(messages), "n": iter(messages)}
        passed = [m for side in order for m in [next(feeds[side])] if overlap.first(m, fresh=side == "n")]
        assert "".join(passed) == messages
