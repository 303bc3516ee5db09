"""Streams, buckets, keys, consumers, inboxes and broker interfaces: every template against the published spelling."""

from __future__ import annotations

import pytest

from sidecar.rails.names import InvalidName, Lifecycle, Principal, api, consumers, inboxes, planes, streams
from sidecar.rails.names import buckets as b
from sidecar.rails.names.grants import overlaps
from sidecar.rails.names.template import Kind
from tests.unit.rails.names.samples import UID, sample

MEMBER = Lifecycle(Principal("local", "alice"), UID)


def test_the_streams_of_a_space_and_their_subjects() -> None:
    assert {one.stream("main"): one.subjects("main") for one in streams.STREAMS} == {
        "CHAT_main": ["cotal.main.chat.>"],
        "DM_main": ["cotal.main.inst.>"],
        "TASK_main": ["cotal.main.svc.>"],
        "INBOX_main": ["cotal.main.dinbox.>"],
        "DLV_main": ["cotal.main.dlv.>"],
        "EPJ_main": ["cotal.main.epj.>"],
        "EPF_main": ["cotal.main.epf.>"],
        "EPE_main": ["cotal.main.epe.>"],
        "EPT_REQ_main": ["cotal.main.ept.*.*.*.*.schedule"],
        "EPT_main": ["cotal.main.ept.*.*.*.*.armed", "cotal.main.ept.*.*.*.*.fire"],
        "EPR_main": ["cotal.main.epr.>"],
        "EPW_main": ["cotal.main.epw.>"],
        "EPC_main": ["cotal.main.epc.>"],
        "WFJ_main": ["cotal.main.wfj.*"],
    }


def test_the_buckets_of_a_space() -> None:
    names = "presence channels membership anycast members acl delivery manager sessions records auth"
    names += " issued accepted admission"
    assert [one.bucket("main") for one in b.BUCKETS] == [f"cotal_{name}_main" for name in names.split()]
    for one in b.BUCKETS:
        assert one.stream("main") == f"KV_{one.bucket('main')}"
        assert one.everything("main") == f"$KV.{one.bucket('main')}.>"


def test_no_two_streams_of_a_space_capture_one_subject() -> None:
    found = streams.all_streams("main")
    assert len(found) == len(streams.STREAMS) + len(b.BUCKETS)
    rows = [(name, subject) for name, subjects in found.items() for subject in subjects]
    assert [(one, two) for one in rows for two in rows if one < two and overlaps(one[1], two[1])] == []


@pytest.mark.req("C3-20")
def test_object_buckets() -> None:
    assert b.ARTIFACTS.stream(space="main") == "OBJ_cotal_artifacts_main"
    assert b.ARTIFACTS.chunks(space="main") == "$O.cotal_artifacts_main.C.>"
    assert b.ARTIFACTS.metas(space="main") == "$O.cotal_artifacts_main.M.>"
    transfer = {"space": "main", "instance": UID}
    assert b.TRANSFER.stream(**transfer) == f"OBJ_cotal_xfer_main_{UID}"
    assert b.TRANSFER.metas(**transfer) == f"$O.cotal_xfer_main_{UID}.M.>"
    assert b.TRANSFER_BUCKET.parse(f"cotal_xfer_my_space_{UID}") == {"space": "my_space", "instance": UID}
    digest = "ab" * 32
    bucket = b.TRANSFER_BUCKET.build(**transfer)
    assert b.OBJECT_CHUNK.build(bucket=bucket, nuid=digest) == f"$O.{bucket}.C.{digest}"
    name = b.meta_name("sha256:" + digest)
    assert name == "c2hhMjU2OmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWI="
    assert b.OBJECT_META.build(bucket=bucket, meta_name=name) == f"$O.{bucket}.M.{name}"


def test_a_key_is_written_on_the_subject_of_its_bucket() -> None:
    who = {"owner": "local", "actor": "alice"}
    subject = b.PRESENCE.subject("main", b.PRESENCE_KEY, **who)
    assert subject == "$KV.cotal_presence_main.local.alice"
    assert b.PRESENCE.parse("main", b.PRESENCE_KEY, subject) == who
    assert b.CHANNELS.subject("main", b.CHANNEL_KEY, channel="team.backend") == "$KV.cotal_channels_main.team.backend"
    assert b.CHANNELS.subject("main", b.CHANNEL_DEFAULTS) == "$KV.cotal_channels_main.=defaults"
    assert b.MEMBERSHIP.subject("main", b.MEMBERSHIP_FEED) == "$KV.cotal_membership_main.=feed"
    assert (
        b.ANYCAST.subject("main", b.ANYCAST_KEY, epoch_token="20261201", sequence=7)
        == "$KV.cotal_anycast_main.r.20261201.7"
    )
    assert b.DELIVERY.subject("main", b.DELIVERY_LEASE, shard=0) == "$KV.cotal_delivery_main.lease.0"
    assert b.MANAGER.filter("main", b.MANAGER_LEASE) == "$KV.cotal_manager_main.lease.*"
    assert b.ACL.filter("main", b.ACL_KEY, **who) == "$KV.cotal_acl_main.local.alice.*"
    assert b.AUTH.subtree("main", b.AUTH_CREDENTIAL, uid=UID) == f"$KV.cotal_auth_main.cred.{UID}.>"
    assert b.AUTH.subject("main", b.AUTH_PLANE) == "$KV.cotal_auth_main.plane"
    for other in (
        "$KV.cotal_presence_other.local.alice",
        "$KV.cotal_presence_main.local",
        "$KV.cotal_presence_main.a.b-c",
    ):
        with pytest.raises(InvalidName):
            b.PRESENCE.parse("main", b.PRESENCE_KEY, other)
    with pytest.raises(TypeError):
        b.PRESENCE.subject("main", b.CHANNEL_KEY, channel="x")


def test_every_key_has_a_bucket() -> None:
    held = {key for one in b.BUCKETS for key in one.keys}
    assert held == {one for one in b.TEMPLATES if one.kind is Kind.KEY}


def test_a_member_key_holds_a_channel_or_a_family() -> None:
    for channel, stored in (
        ("general", "general"),
        ("team.back-end", "team.back-end"),
        ("team.>", "team.="),
        ("a.b.>", "a.b.="),
    ):
        key = b.member_key(channel, MEMBER)
        assert key == f"{stored}/local.alice.{UID}"
        assert b.parse_member_key(key) == (channel, MEMBER)
    for channel in (">", "*", "team.*", "a.*.>", "", "team.=", "a..b", ".>"):
        with pytest.raises(InvalidName):
            b.member_key(channel, MEMBER)
    for key in (
        "",
        "general",
        f"general.local.alice.{UID}",
        f"a/b/local.alice.{UID}",
        f"=/local.alice.{UID}",
        f"a.=.b/local.alice.{UID}",
    ):
        with pytest.raises(InvalidName):
            b.parse_member_key(key)


@pytest.mark.req("C8-27", "C8-34")
def test_messaging_consumers() -> None:
    names = MEMBER.names
    assert consumers.CHAT_HISTORY.build(**names) == f"chathist_local-alice-{UID}"
    assert consumers.DM.build(**names) == f"dm_local-alice-{UID}"
    assert consumers.HANDOFF.build(**names) == f"dlv_local-alice-{UID}"
    assert consumers.ROLE.build(role="code-review") == "svc_code-review"
    assert consumers.REMOVED_LIVE_TAIL.build(owner="local", actor="alice") == "chat_local-alice"
    assert (consumers.FANOUT.build(), consumers.FANOUT_SHARD.build(shard=2)) == ("fanout", "fanout_2")
    assert (consumers.READER.build(), consumers.READER_SHARD.build(shard=0)) == ("reader", "reader_0")
    assert consumers.HISTORY_READER.build(reader="r_1", slot=7) == "hist_r_1_7"
    assert consumers.HISTORY_READER.parse("hist_r_1_7") == {"reader": "r_1", "slot": "7"}
    with pytest.raises(InvalidName):
        consumers.HISTORY_READER.build(reader="r", slot=8)
    assert not consumers.DM.fits(f"dm_local-a-b-{UID}")
    assert consumers.DM.parse(f"dm_u_x-build_bot-{UID}")["actor"] == "build_bot"


@pytest.mark.req("C13.2-06")
def test_control_consumers() -> None:
    assert consumers.CANONICALIZER.build(endpoint="com_acme") == "canon_com_acme"
    assert consumers.POOL.build(endpoint="com_acme", pool="gpu-1") == "pool_com_acme_gpu-1"
    assert consumers.TIMER_WRITER.build(space="main") == "timerw_main"
    assert consumers.RECORD_WRITER.build(space="main", kind="svc") == "recw_main-svc"
    assert consumers.EFFECTS.build(endpoint="manager") == "eff_manager"
    assert consumers.DECISIONS.build(uid=UID, endpoint="manager") == f"dec_{UID}-manager"
    assert consumers.GOALS.build(uid=UID, endpoint="manager") == f"goal_{UID}-manager"
    assert consumers.EVENTS.build(uid=UID, endpoint="manager", grant="g1", n=3) == f"eve_{UID}-manager-g1-3"
    assert consumers.RECORDS.build(uid=UID, grant="g1", n=0) == f"rec_{UID}-g1-0"
    assert consumers.LEDGER_SCAN.build() == "cotal-ledger-scan"
    assert consumers.RECORDS_SCAN.build() == "cotal-records-scan"
    assert consumers.RUN_REPLAY.build(run="r1", takeover="t1") == "wfj_r1_t1"
    with pytest.raises(InvalidName, match="compared whole"):
        consumers.DECISIONS.parse(f"dec_{UID}-manager")


@pytest.mark.req("C2-17")
def test_inboxes() -> None:
    nkey = "UAQGWOEVJKMIO4WXSYOTLARXYOZTCXFK67JASEH6AFFFYK6FOPSKQCAD"
    assert inboxes.INBOX.build(connection=nkey) == f"_INBOX_{nkey}"
    assert inboxes.INBOX.subtree(connection="abcdefgh") == "_INBOX_abcdefgh.>"
    assert inboxes.MEMBERSHIP.subtree() == "_INBOX.cotal-membership.>"
    assert inboxes.CENSUS.subtree(id="x1") == "_INBOX.cotal-account-census.x1.>"
    for connection in (">", "a.b", "*", "", "short77", "x" * 121, "abcdefg*"):
        with pytest.raises(InvalidName):
            inboxes.INBOX.subtree(connection=connection)


def test_broker_interfaces_are_spelled_in_full() -> None:
    pair = {"stream": "DM_main", "consumer": f"dm_local-alice-{UID}"}
    tail = f"DM_main.dm_local-alice-{UID}"
    assert api.CONSUMER_INFO.build(**pair) == f"$JS.API.CONSUMER.INFO.{tail}"
    assert api.CONSUMER_NEXT.build(**pair) == f"$JS.API.CONSUMER.MSG.NEXT.{tail}"
    assert api.CONSUMER_DELETE.build(**pair) == f"$JS.API.CONSUMER.DELETE.{tail}"
    assert api.DURABLE_CREATE.build(**pair) == f"$JS.API.CONSUMER.DURABLE.CREATE.{tail}"
    assert api.ACK.subtree(**pair) == f"$JS.ACK.{tail}.>"
    assert api.MESSAGE_GET.build(stream="S") == "$JS.API.STREAM.MSG.GET.S"
    assert api.MESSAGE_DELETE.build(stream="S") == "$JS.API.STREAM.MSG.DELETE.S"
    for verb in ("CREATE", "UPDATE", "INFO", "DELETE", "PURGE"):
        assert getattr(api, f"STREAM_{verb}").build(stream="S") == f"$JS.API.STREAM.{verb}.S"
    assert api.DIRECT_GET.build(stream="S") == "$JS.API.DIRECT.GET.S"
    assert (
        api.DIRECT_GET_LAST.build(stream="EPC_main", filter="cotal.main.epc.ab")
        == "$JS.API.DIRECT.GET.EPC_main.cotal.main.epc.ab"
    )
    assert (api.INFO.build(), api.FLOW.subtree()) == ("$JS.API.INFO", "$JS.FC.>")
    account, server = "A" * 56, "N" + "A" * 55
    assert api.CONNECTIONS.build(account=account) == f"$SYS.REQ.ACCOUNT.{account}.CONNZ"
    assert api.CONNECTED.build(account=account) == f"$SYS.ACCOUNT.{account}.CONNECT"
    assert api.DISCONNECTED.build(account=account) == f"$SYS.ACCOUNT.{account}.DISCONNECT"
    assert api.KICK.build(server=server) == f"$SYS.REQ.SERVER.{server}.KICK"
    assert api.KICK.filter() == "$SYS.REQ.SERVER.*.KICK"
    assert api.USER_INFO.build() == "$SYS.REQ.USER.INFO"
    assert api.PING_VARZ.build() == "$SYS.REQ.SERVER.PING.VARZ"
    for wrong in ("*", "A", "a" * 56, "U" + "A" * 55):
        with pytest.raises(InvalidName):
            api.CONNECTIONS.build(account=wrong)


@pytest.mark.req("C13.2-69")
def test_endpoint_planes() -> None:
    caller = f"local.alice.{UID}"
    expected = {
        planes.EVENT: f"cotal.main.epe.com_acme-x_deploy.{UID}.7.ev.cluster.done",
        planes.EVENT_CLUSTER: f"cotal.main.epe.com_acme-x_deploy.{UID}.7.ev.abc-DEF_1.abc-DEF_1",
        planes.EVENT_GOAL: f"cotal.main.epe.com_acme-x_deploy.{UID}.7.goal.{caller}.id-1.abc-DEF_1",
        planes.EVENT_CHECKPOINT: f"cotal.main.epe.com_acme-x_deploy.{UID}.7.cp.id-1.abc-DEF_1",
        planes.FACT: "cotal.main.epf.com_acme-x_deploy.ev.cluster.done",
        planes.FACT_DECISION: f"cotal.main.epf.com_acme-x_deploy.dec.{caller}.id-1",
        planes.FACT_QUARANTINE: "cotal.main.epf.com_acme-x_deploy.quar.7",
        planes.FACT_GOAL: f"cotal.main.epf.com_acme-x_deploy.goal.{caller}.id-1.bind",
        planes.FACT_WORK: f"cotal.main.epf.com_acme-x_deploy.wrk.gpu-1.{caller}.id-1",
        planes.FACT_EFFECT: f"cotal.main.epf.com_acme-x_deploy.eff.{caller}.id-1",
        planes.FACT_CHECKPOINT: "cotal.main.epf.com_acme-x_deploy.cp.id-1",
        planes.FACT_RECEIPT: f"cotal.main.epf.com_acme-x_deploy.receipt.{caller}.id-1.7",
        planes.SUBMISSION_PLANE: "cotal.main.epj.com_acme-x_deploy",
        planes.TIMER_SCHEDULE: f"cotal.main.ept.com_acme-x_deploy.{UID}.7.id-1.schedule",
        planes.TIMER_ARMED: f"cotal.main.ept.com_acme-x_deploy.{UID}.7.id-1.armed",
        planes.TIMER_FIRE: f"cotal.main.ept.com_acme-x_deploy.{UID}.7.id-1.fire",
        planes.RECORD_WRITE: f"cotal.main.epr.com_acme-x_deploy.{UID}.7.id-1.ev.cluster.done",
        planes.CONTRACT: f"cotal.main.epc.{'a' * 64}",
        planes.POOL_ITEM: f"cotal.main.epw.com_acme-x_deploy.gpu-1.{caller}.id-1",
        planes.SESSION: "cotal.main.eps.com_acme-x_deploy.id-1.7.in",
        planes.RUN_JOURNAL: "cotal.main.wfj.id-1",
    }
    assert {one: one.build(**sample(one)) for one in planes.TEMPLATES} == expected
    assert planes.EVENT_GOAL.subtree(space="main", endpoint="manager", **MEMBER.names) == (
        f"cotal.main.epe.manager.*.*.goal.{caller}.>"
    )
    assert planes.RECORD_WRITE.subtree(space="main", kind="svc") == "cotal.main.epr.*.*.*.svc.>"
    assert planes.FACT_DECISION.subtree(space="main", endpoint="m") == "cotal.main.epf.m.dec.>"


RECORD_TEXTS = """
svc.com_acme-x_deploy.UID.spec
signer.id-1.spec
handle.id-1.id-1.spec
contracts.com_acme-x_deploy.spec
goal.com_acme-x_deploy.local.alice.UID.id-1.spec
goalidx.com_acme-x_deploy.local.alice.UID.id-1
goaleff.com_acme-x_deploy.local.alice.UID.id-1.7
epname.com_acme-x_deploy.id-1
epmig.com_acme-x_deploy
cp.com_acme-x_deploy.id-1.spec
lease.com_acme-x_deploy.gpu-1.local.alice.UID.id-1.spec
lifecycle.local.alice
lifecycle.local.alice.UID
uid.UID
policy.com_acme-x_deploy.HEX
oblig.UID.com_acme-x_deploy.local.alice.UID.id-1
oblig.ep.com_acme-x_deploy.local.alice.UID.id-1
frontier.UID
govern.com_acme-x_deploy
run.com_acme-x_deploy.id-1.spec
answer.com_acme-x_deploy.id-1.id-1
notice.com_acme-x_deploy.id-1.id-1.id-1.spec
migration.com_acme-x_deploy.id-1.id-1.spec
"""
AUTH_TEXTS = """
cred.UID.id-1
gate.UID
epgate.com_acme-x_deploy.UID
epcred.com_acme-x_deploy.UID.id-1
eprepair.com_acme-x_deploy.UID
srcgate.id-1.id-1
bysrc.id-1.id-1.UID.id-1
stage.id-1.ev.cluster.done
chatholder.local.id-1
chatowner.local
chatsweep.cursor
plane
session.id-1
"""
ISSUED_TEXTS = """
v1.local.alice.UID.GENERATION
attempt.v1.local.alice.UID.GENERATION
bysource.v1.HEX.local.alice.UID.GENERATION
"""


@pytest.mark.parametrize(
    ("bucket", "texts"),
    [(b.RECORDS, RECORD_TEXTS), (b.AUTH, AUTH_TEXTS), (b.ISSUED, ISSUED_TEXTS)],
    ids=["records", "auth", "issued"],
)
def test_keys_of_the_control_buckets(bucket: b.Bucket, texts: str) -> None:
    stands = {"UID": UID, "HEX": "a" * 64, "GENERATION": "0" * 31 + "f"}
    expected = texts.split()
    for name, value in stands.items():
        expected = [".".join(value if token == name else token for token in text.split(".")) for text in expected]
    assert [key.build(**sample(key)) for key in bucket.keys] == expected


def test_the_other_keys() -> None:
    assert b.ACCEPTED_KEY.build(token="0" * 32) == f"accepted.v1.{'0' * 32}"
    assert b.ADMISSION_KEY.build(endpoint="manager", run="r1") == "admission.v1.manager.r1"
    assert b.ADMISSION_REVOKED.build(endpoint="manager", run="r1") == "revoked.v1.manager.r1"
    assert b.RECORDS.subtree("main", b.RECORD_OBLIGATION, endpoint="m") == "$KV.cotal_records_main.oblig.*.m.>"
