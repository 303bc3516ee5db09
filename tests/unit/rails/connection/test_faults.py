"""What the broker says and which fault it is."""

from __future__ import annotations

import pytest

from sidecar.ops.catalogue import CATALOGUE
from sidecar.rails.connection.faults import Fault, Heal, PermissionViolation, Said, classify
from sidecar.rails.connection.policy import State
from sidecar.rails.connection.watch import Happening

SENTENCES = [
    ("user authentication expired", Fault.EXPIRED),
    ("User Authentication Revoked", Fault.REVOKED),
    ("account authentication expired", Fault.ACCOUNT),
    ("authorization violation", Fault.AUTHORIZATION),
    ("authentication timeout", Fault.AUTH_TIMEOUT),
    ("maximum connections exceeded", Fault.MAX_CONNECTIONS),
    ("maximum account active connections exceeded", Fault.MAX_CONNECTIONS),
    ("maximum subscriptions exceeded", Fault.MAX_SUBSCRIPTIONS),
    ("maximum payload violation", Fault.MAX_PAYLOAD),
    ("maximum control line exceeded", Fault.MAX_CONTROL_LINE),
    ("stale connection", Fault.STALE),
    ("unexpected eof", Fault.LOST),
    ("unknown protocol operation", Fault.PROTOCOL),
    ("slow consumer", Fault.SLOW_CONSUMER),
    ("something new", Fault.UNKNOWN),
    ("", Fault.UNKNOWN),
]


@pytest.mark.parametrize(("text", "fault"), SENTENCES)
@pytest.mark.parametrize("form", ["{}", "'{}'", "nats: '{}'\r\n", "nats: {}"])
def test_every_sentence_has_its_fault(text: str, fault: Fault, form: str) -> None:
    assert classify(form.format(text)).fault is fault


@pytest.mark.parametrize(
    ("text", "fault", "subject", "queue"),
    [
        ('permissions violation for publish to "a.b"', Fault.PUBLISH_DENIED, "a.b", ""),
        ("'Permissions Violation for Publish to \"A.b\"'", Fault.PUBLISH_DENIED, "a.b", ""),
        ('permissions violation for publish with reply of "a.r"', Fault.PUBLISH_DENIED, "a.r", ""),
        ('nats: permissions violation for subscription to "a.>"', Fault.SUBSCRIBE_DENIED, "a.>", ""),
        ('permissions violation for subscription to "a" using queue "Q"', Fault.SUBSCRIBE_DENIED, "a", "q"),
    ],
)
def test_a_violation_names_its_subject(text: str, fault: Fault, subject: str, queue: str) -> None:
    said = classify(text)
    assert (said.fault, said.subject, said.queue) == (fault, subject, queue)


def test_a_long_subject_is_known_whole_and_its_sentence_is_cut() -> None:
    subject = "a" * 3000
    said = classify(f'permissions violation for publish to "{subject}"')
    assert (said.subject, len(said.text)) == (subject, 200)


def test_what_heals_by_fresh_credentials_and_what_by_nothing() -> None:
    assert {fault for fault in Fault if fault.heal is Heal.FRESH} == {
        Fault.EXPIRED, Fault.REVOKED, Fault.AUTHORIZATION, Fault.ACCOUNT, Fault.CREDENTIALS,
    }  # fmt: skip
    assert {fault for fault in Fault if fault.heal is Heal.STOP} == {
        Fault.OLD_BROKER, Fault.PLAINTEXT, Fault.CREDENTIALS_REFUSED,
    }  # fmt: skip
    assert Fault.UNKNOWN.heal is Heal.AGAIN


def test_a_refusal_says_which_right_is_missing() -> None:
    assert "publish to a.B" in str(PermissionViolation(Fault.PUBLISH_DENIED, "a.B"))
    assert "subscribe to a.B" in str(PermissionViolation(Fault.SUBSCRIBE_DENIED, "a.B"))
    assert Said(Fault.LOST).subject is None


def test_the_metrics_know_every_fault_state_and_kind_of_link() -> None:
    labels = {metric.name: metric.labels[0].values for metric in CATALOGUE if metric.labels}
    assert labels["sidecar_nats_faults"] == tuple(fault.value for fault in Fault)
    assert labels["sidecar_nats_connections"] == tuple(state.value for state in State if state is not State.CLOSED)
    assert labels["sidecar_nats_links"] == tuple(
        one.value for one in Happening if one.name[:4] in ("CONN", "REST", "RENE")
    )
