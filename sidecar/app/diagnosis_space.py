"""What the doctor concludes about one space: account, streams, durables, delivery plane, credentials. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sidecar.app.diagnosis import FULL_WARN, Finding, Level, listed, unknown
from sidecar.rails.messaging.liveness import Liveness, Verdict
from sidecar.rails.names import consumers, streams
from sidecar.rails.names.limits import HISTORY_READER_SLOTS
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.planes.delivery.lease import LeaseRow
from sidecar.rails.space.audit import audit
from sidecar.rails.space.claims import AccountClaims, Token, UserClaims
from sidecar.rails.space.holder import LONGEST_SECONDS, Form, Holder, Profile
from sidecar.rails.space.layout import Limits, configurations, drift, durable_drift, durables
from sidecar.rails.space.reading import as_granted

LAG_WARN: Final = 1_000
"""Messages that wait for a loop of the delivery plane."""
OLD_LEASE_SECONDS: Final = 20.0
"""A lease is renewed every 15 seconds; one that is older is not renewed any more."""
OLD_FEED_SECONDS: Final = 30.0
"""The feed is written every 5 seconds while it can be."""
SOON: Final = 0.1
"""The last part of a credential's life, in which it should have been renewed."""

Consumers = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Stream name -> consumer name -> what the broker says of it."""


def judge_account(space: str, kept: Token, known: Token | None) -> Finding:
    """The account's token on disk and at the broker."""
    do = f"push it again: sidecar space create {space} --server URL"
    if known is None:
        why = "nobody can log in to the space"
        return Finding("account", Level.FAIL, "the broker does not know the account", why, do, space)
    assert isinstance(kept.claims, AccountClaims)
    assert isinstance(known.claims, AccountClaims)
    if known.claims != kept.claims:
        missing = kept.claims.revocations.keys() - known.claims.revocations.keys()
        what = "the broker has another token of the account than this directory"
        why = f"{len(missing)} revoked users can still log in" if missing else "limits or keys differ"
        return Finding("account", Level.FAIL, what, why, do, space)
    return Finding("account", Level.OK, "the broker has the account's present token", space=space)


def judge_streams(space: str, found: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Streams and buckets by name with their configuration at the broker."""
    wanted = configurations(space, Limits())
    findings = []
    if missing := [name for name in wanted if name not in found]:
        what, why = f"missing: {listed(missing)}", "what is sent there is lost or refused"
        do = f"make them: sidecar space create {space} --server URL"
        findings.append(Finding("streams", Level.FAIL, what, why, do, space))
    for name in wanted:
        if differences := drift(space, name, found[name]) if name in found else []:
            what, why = f"{name}: {listed(differences)}", "guarantees of the space depend on it; it is never repaired"
            do = "put the named fields back with the nats command, or make the space anew"
            findings.append(Finding("streams", Level.FAIL, what, why, do, space))
    if not findings:
        findings.append(Finding("streams", Level.OK, f"all {len(wanted)} have their shape", space=space))
    return findings


def judge_durables(space: str, members: Iterable[tuple[Lifecycle, tuple[str, ...]]], known: Consumers) -> list[Finding]:
    """The durables of active members (a lifecycle with its roles)."""
    missing, differing, count = [], [], 0
    for lifecycle, roles in members:
        for name, wanted in durables(space, lifecycle, roles, 0).items():
            count += 1
            found = known.get(wanted["stream_name"], {}).get(name)
            if found is None:
                missing.append(name)
            elif differences := durable_drift(wanted["config"], found.get("config") or {}):
                differing.append(f"{name}: {'; '.join(differences)}")
    findings = []
    if missing:
        why = "its member gets no direct messages, no durable copies or no work"
        do = "give the same command once more: sidecar principal add; what waited and what it had comes again"
        what = f"missing: {listed(dict.fromkeys(missing))}"
        findings.append(Finding("durables", Level.FAIL, what, why, do, space))
    if differing:
        why = "its member is delivered something else, or never again"
        findings.append(Finding("durables", Level.FAIL, listed(differing), why, "delete it and add it anew", space))
    if not findings:
        findings.append(Finding("durables", Level.OK, f"all {count} of known members are there", space=space))
    return findings


def judge_leftovers(space: str, members: Iterable[tuple[Lifecycle, tuple[str, ...]]], known: Consumers) -> Finding:
    """Durables of lifecycles that are not active here, and consumers that must not exist."""
    expected: set[str] = set()
    for lifecycle, roles in members:
        expected |= durables(space, lifecycle, roles, 0).keys()
    bound = (streams.DM, streams.DLV, streams.TASK)
    found = [name for one in bound for name in known.get(one.stream(space), {}) if name not in expected]
    chat = known.get(streams.CHAT.stream(space), {})
    found += [name for name in chat if consumers.REMOVED_LIVE_TAIL.fits(name)]
    readers: dict[str, int] = {}
    for name in chat:
        if consumers.HISTORY_READER.fits(name):
            reader = consumers.HISTORY_READER.parse(name)["reader"]
            readers[reader] = readers.get(reader, 0) + 1
    found += [
        f"{count} history readers of one credential" for count in readers.values() if count > HISTORY_READER_SLOTS
    ]
    if not found:
        return Finding("leftovers", Level.OK, "no consumer is left over", space=space)
    why = "a durable that nobody reads keeps what is sent to it, and an old one may be read by who takes its name"
    do = "sidecar principal revoke ends a lifecycle with its durables; the rest belong to members of other directories"
    return Finding("leftovers", Level.WARN, f"of no known member: {listed(sorted(found))}", why, do, space)


def judge_room(space: str, found: Mapping[str, Mapping[str, Any]], known: Consumers, default: object) -> Finding:
    """Whether the streams take further consumers: by their configuration, or by the broker's ``default``."""
    tight: list[str] = []
    full: list[str] = []
    for name, config in found.items():
        most = config.get("max_consumers")
        if type(most) is not int or most <= 0:
            most = default if type(default) is int and default > 0 else 0
        count = len(known.get(name, {}))
        if most and count >= most * FULL_WARN:
            (full if count >= most else tight).append(f"{name} has {count} of at most {most}")
    if not full and not tight:
        return Finding("consumers", Level.OK, "every stream has room for further consumers", space=space)
    why = "a member that comes then gets no durable, a reader no history"
    do = "raise max_consumers of the stream with the nats command, or default_max_consumers of the broker"
    level = Level.FAIL if full else Level.WARN
    return Finding("consumers", level, listed([*full, *tight]), why, do, space)


# ---- the delivery plane ----


def judge_lease(space: str, row: LeaseRow | None, age: float, old: float = OLD_LEASE_SECONDS) -> Finding:
    """Who holds the delivery plane; ``age`` is the time since the row was written, in seconds."""
    why = "no copies, durable joins or takes of requests; a mediated space's members read nothing that is stored"
    do = "start it: sidecar delivery --config FILE"
    if row is None:
        return Finding("lease", Level.FAIL, "nobody holds the delivery plane", why, do, space)
    holder = f"{row.holder}, instance {row.instance}"
    if age > old:
        what = f"{holder} holds the delivery plane and has not renewed for {age:.0f} s"
        return Finding("lease", Level.FAIL, what, why, "see whether that process hangs; " + do, space)
    if not row.ready:
        return Finding("lease", Level.WARN, f"{holder} holds the delivery plane and is not ready", why, "", space)
    return Finding("lease", Level.OK, f"{holder} holds the delivery plane", space=space)


def judge_feed(space: str, complete: bool | None, age: float) -> Finding:
    """The heartbeat of the membership feed: whether its last look was complete (None without one), and its age."""
    why = "dashboards show who listened to what at some earlier time; delivery does not depend on it"
    do = "see the delivery plane's log for its loop feed"
    if complete is None:
        return Finding("feed", Level.WARN, "the membership feed was never written", why, do, space)
    if age > OLD_FEED_SECONDS:
        return Finding("feed", Level.WARN, f"the membership feed is {age:.0f} s old", why, do, space)
    if not complete:
        return Finding("feed", Level.WARN, "the membership feed did not see every connection", why, do, space)
    return Finding("feed", Level.OK, "the membership feed is current", space=space)


def judge_liveness(space: str, found: Liveness) -> Finding:
    """What the plane says of itself."""
    if found.verdict is Verdict.BOUND:
        return Finding("liveness", Level.OK, "the delivery plane answers", space=space)
    if found.verdict is Verdict.UNKNOWN:
        return unknown("liveness", f"the probe of the delivery plane ended with: {found.why}", space)
    says = "nobody answers for the delivery plane" if found.instance is None else "the delivery plane is not bound"
    if found.verdict is Verdict.STALE:
        says = "an instance answers that does not hold the lease"
    why = "durable channels and anycast wait until it is there"
    return Finding("liveness", Level.FAIL, says, why, "start it: sidecar delivery --config FILE", space)


def judge_lag(space: str, known: Consumers) -> list[Finding]:
    """What waits for the loops of the delivery plane."""
    findings = []
    for check, stream, consumer in (
        ("fanout-lag", streams.CHAT, consumers.FANOUT),
        ("reader-lag", streams.INBOX, consumers.READER),
    ):
        found = known.get(stream.stream(space), {}).get(consumer.build())
        if found is None:
            why = "it is made when the delivery plane serves for the first time"
            text = f"{stream.stream(space)} has no consumer {consumer.build()}"
            findings.append(Finding(check, Level.WARN, text, why, "start it: sidecar delivery --config FILE", space))
            continue
        waiting, sent = _number(found, "num_pending"), _number(found, "num_ack_pending")
        text = f"{waiting} messages wait, {sent} are under way"
        if waiting > LAG_WARN:
            why = "copies come late, and posts that the chat limit removes first are lost to members"
            do = "see the delivery plane's log and metrics; is its disk or broker slow?"
            findings.append(Finding(check, Level.WARN, text, why, do, space))
        else:
            findings.append(Finding(check, Level.OK, text, space=space))
    return findings


def _number(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    return value if type(value) is int else 0


# ---- credentials ----


def judge_creds(
    name: str,
    token: Token,
    account: AccountClaims | None,
    profiles: Sequence[tuple[Profile, Holder]],
    now: float,
    space: str = "",
) -> list[Finding]:
    """A credential that was read: its end, who signed it, and its grants against those of ``profiles``, of which one
    must fit. ``account``: the claims of its space; None when they are not known."""
    user = token.claims
    assert isinstance(user, UserClaims)
    findings = [_end(name, token, now, space)]
    if account is not None:
        fault = _signer(token, user, account)
        if fault:
            do = "renew it: sidecar principal renew"
            findings.append(Finding("creds-trust", Level.FAIL, f"{name}: {fault}", "the broker refuses it", do, space))
    wrong = {profile: audit(profile, holder, user.permissions) for profile, holder in profiles}
    if not profiles:
        findings.append(unknown("creds-grants", f"{name} does not say whose it is", space))
    elif fitting := [profile for profile, faults in wrong.items() if not faults]:
        findings.append(Finding("creds-grants", Level.OK, f"{name} has grants of {fitting[0]} alone", space=space))
    else:
        faults = min(wrong.values(), key=len)
        why, do = "its holder can do what no profile may", "revoke it, and mint it again"
        findings.append(Finding("creds-grants", Level.FAIL, f"{name}: {listed(faults)}", why, do, space))
    return findings


def _end(name: str, token: Token, now: float, space: str) -> Finding:
    do = "renew it: sidecar principal renew"
    if token.expires_at is None:
        why = "a lost file opens the space for ever"
        return Finding("creds-end", Level.FAIL, f"{name} has no end", why, "mint it again", space)
    left, life = token.expires_at - now, max(1, token.expires_at - token.issued_at)
    if left <= 0:
        return Finding("creds-end", Level.FAIL, f"{name} ended {-left:.0f} s ago", "the broker refuses it", do, space)
    if left < life * SOON:
        why = "the broker refuses it from then on"
        return Finding("creds-end", Level.WARN, f"{name} ends in {left:.0f} s", why, do, space)
    return Finding("creds-end", Level.OK, f"{name} ends in {left / 3600:.1f} h", space=space)


def _signer(token: Token, user: UserClaims, account: AccountClaims) -> str:
    if user.issuer_account != account.subject:
        return "it is of another account"
    if token.issuer not in (account.subject, *account.signing_keys):
        return "its signing key is none of the account any more"
    if account.revocations.get(user.subject, -1) >= token.issued_at:
        return "it was revoked"
    return ""


def candidates(
    space: str, form: Form, lifecycle: Lifecycle, connection: str, roles: tuple[str, ...], user: UserClaims
) -> list[tuple[Profile, Holder]]:
    """Whom a credential may be of that says whose it is but not which profile it has: those of files on a disk. What it
    may call and serve is read from the rows of ``user``; that no profile may hold them is for the audit to find."""
    holder = as_granted(Holder(space, lifecycle, connection, form, roles=roles), user)
    return [(profile, holder) for profile in LONGEST_SECONDS if profile not in _NEVER_ON_DISK]


_NEVER_ON_DISK: Final = (
    Profile.DELIVERY,
    Profile.PROVISIONER,
    Profile.DEPROVISIONER,
    Profile.REGISTRY,
    Profile.RECORD_WRITER,
    Profile.PUBLISHER,
    Profile.REGISTRAR,
    Profile.ISSUER,
    Profile.LIFECYCLES,
)
"""Minted for one task and never written; nothing of them should be in a file."""
