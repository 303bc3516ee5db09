"""KV buckets, their keys, and object buckets (Data D3; 13.7, 13.12, 13.15, 14.8).

A key is published on ``$KV.<bucket>.<key>``. The backing stream of a bucket is ``KV_<bucket>``, of an object bucket
``OBJ_<bucket>``; the latter is a stream name and no subject (C3-20).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from sidecar.rails.names.errors import InvalidName
from sidecar.rails.names.principals import Lifecycle
from sidecar.rails.names.template import Kind, Template, listed
from sidecar.rails.names.tokens import GRAMMARS

_B, _K, _S = Kind.BUCKET, Kind.KEY, Kind.SUBJECT

KV_STREAM = Template(Kind.STREAM, "KV stream", "KV_<bucket>", "C8-69", "backing stream of a KV bucket")
KV_SUBJECT = Template(_S, "KV subject", "$KV.<bucket>.<key...>", "C3-19", "one key of a KV bucket")
KV_ALL = Template(_S, "KV bucket subjects", "$KV.<bucket>", "C3-19", "everything below")
OBJECT_STREAM = Template(Kind.STREAM, "object stream", "OBJ_<bucket>", "C3-20", "backing stream of an object bucket")
OBJECT_CHUNK = Template(_S, "object chunk", "$O.<bucket>.C.<nuid:word>", "C3-20", "bytes of an object")
OBJECT_META = Template(_S, "object meta", "$O.<bucket>.M.<meta_name>", "C8-22", "record of an object, base64url name")

PRESENCE_KEY = Template(_K, "presence key", "<owner>.<actor>", "C2-10", "own key only")
CHANNEL_KEY = Template(_K, "channel key", "<channel...>", "C7", "registry row of a concrete channel")
CHANNEL_DEFAULTS = Template(_K, "channel defaults", "=defaults", "C7", "registry defaults")
MEMBERSHIP_KEY = Template(_K, "membership key", "<owner>.<actor>", "C8-72", "feed row, display only")
MEMBERSHIP_FEED = Template(_K, "membership heartbeat", "=feed", "D3", "freshness of the feed")
ANYCAST_KEY = Template(_K, "anycast key", "r.<epoch_token>.<sequence:number>", "D3", "one request")
MEMBER_KEY = Template(
    _K, "member key", "<channel...:member_channel>/<owner>.<actor>.<uid>", "D3", "durable membership with cursors"
)
ACL_KEY = Template(_K, "ACL key", "<owner>.<actor>.<uid>", "D3", "current read ACL")
DELIVERY_LEASE = Template(_K, "delivery lease", "lease.<shard:number>", "D3", "one shard: lease.0")
MANAGER_LEASE = Template(_K, "manager lease", "lease.<instance>", "D3", "one per manager instance")
MANAGER_RENEWAL = Template(_K, "manager renewal", "renewal", "D3", "renewal record")
SESSION_KEY = Template(_K, "session key", "session.<session:id>", "13.6", "session ledger")

_CALLER = "<owner>.<actor>.<uid>"
RECORD_SERVICE = Template(_K, "record svc", "svc.<endpoint>.<instance>.<half>", "13.7", "registration")
RECORD_SIGNER = Template(_K, "record signer", "signer.<signer:id>.<half>", "13.7", "operator")
RECORD_HANDLE = Template(_K, "record handle", "handle.<signer:id>.<id>.<half>", "13.7", "capability handle")
RECORD_CONTRACTS = Template(_K, "record contracts", "contracts.<endpoint>.<half>", "13.7", "advisory")
RECORD_GOAL = Template(_K, "record goal", f"goal.<endpoint>.{_CALLER}.<goal:id>.<half>", "13.7", "projection")
RECORD_GOAL_INDEX = Template(_K, "record goalidx", f"goalidx.<endpoint>.{_CALLER}.<goal:id>", "13.7", "goal writer")
RECORD_GOAL_EFFECT = Template(
    _K, "record goaleff", f"goaleff.<endpoint>.{_CALLER}.<goal:id>.<sequence:number>", "13.7", "phases of an effect"
)
RECORD_NAME = Template(_K, "record epname", "epname.<endpoint>.<name:id>", "13.7", "claimed names")
RECORD_MIGRATION_MAP = Template(_K, "record epmig", "epmig.<endpoint>", "13.7", "cutover manifest")
RECORD_CHECKPOINT = Template(_K, "record cp", "cp.<endpoint>.<token:id>.<half>", "13.7", "checkpoint")
RECORD_LEASE = Template(_K, "record lease", f"lease.<endpoint>.<pool>.{_CALLER}.<id>.<half>", "13.7", "fencing")
RECORD_LIFECYCLE = Template(_K, "record lifecycle head", "lifecycle.<owner>.<actor>", "13.1", "authoritative")
RECORD_LIFECYCLE_DETAIL = Template(_K, "record lifecycle detail", f"lifecycle.{_CALLER}", "13.1", "audit")
RECORD_UID = Template(_K, "record uid", "uid.<uid>", "13.1", "reservation, create-only")
RECORD_POLICY = Template(_K, "record policy", "policy.<endpoint>.<digest:hex>", "13.7", "create-only")
RECORD_OBLIGATION = Template(
    _K, "record oblig", f"oblig.<to_uid:uid>.<endpoint>.{_CALLER}.<id>", "13.8", "of a targeted command"
)
RECORD_OBLIGATION_OPEN = Template(
    _K, "record oblig, untargeted", f"oblig.ep.<endpoint>.{_CALLER}.<id>", "13.8", "of an untargeted command"
)
RECORD_FRONTIER = Template(_K, "record frontier", "frontier.<uid>", "13.7", "retirement cutoffs")
RECORD_GOVERN = Template(_K, "record govern", "govern.<endpoint>", "13.7", "governance head")
RECORD_RUN = Template(_K, "record run", "run.<endpoint>.<run:id>.<half>", "14.3", "run")
RECORD_ANSWER = Template(_K, "record answer", "answer.<endpoint>.<token:id>.<answer:id>", "14.5", "create-only")
RECORD_NOTICE = Template(
    _K, "record notice", "notice.<endpoint>.<run:id>.<addressee:id>.<notice:id>.<half>", "14.5", "create-only halves"
)
RECORD_MIGRATION = Template(
    _K, "record migration", "migration.<endpoint>.<run:id>.<migration:id>.<half>", "14.5", "create-only halves"
)

AUTH_CREDENTIAL = Template(_K, "auth cred", "cred.<uid>.<credential:id>", "13.12", "ledger row")
AUTH_GATE = Template(_K, "auth gate", "gate.<uid>", "13.12", "issuance gate")
AUTH_ENDPOINT_GATE = Template(_K, "auth epgate", "epgate.<endpoint>.<instance>", "13.12", "endpoint gate")
AUTH_ENDPOINT_CREDENTIAL = Template(
    _K, "auth epcred", "epcred.<endpoint>.<instance>.<credential:id>", "13.12", "endpoint ledger row"
)
AUTH_ENDPOINT_REPAIR = Template(_K, "auth eprepair", "eprepair.<endpoint>.<instance>", "13.12", "repair cursor")
AUTH_SOURCE_GATE = Template(_K, "auth srcgate", "srcgate.<signer:id>.<id>", "13.12", "gate of one handle")
AUTH_BY_SOURCE = Template(_K, "auth bysrc", "bysrc.<signer:id>.<id>.<uid>.<credential:id>", "13.12", "lineage index")
AUTH_STAGE = Template(_K, "auth stage", "stage.<operation:id>.<rest...:topic>", "13.12", "staging only")
AUTH_CHAT_HOLDER = Template(
    _K, "auth chatholder", "chatholder.<owner>.<holder:id>", "D3", "chat sessions of one holder"
)
AUTH_CHAT_OWNER = Template(_K, "auth chatowner", "chatowner.<owner>", "D3", "chat sessions of one owner")
AUTH_CHAT_SWEEP = Template(_K, "auth chatsweep", "chatsweep.cursor", "D3", "where the sweep goes on")
AUTH_PLANE = Template(_K, "auth plane", "plane", "13.13", "plane ownership claim")

_ISSUED = f"{_CALLER}.<generation>"
ISSUED_KEY = Template(_K, "issued evidence", f"v1.{_ISSUED}", "13.15", "issuer")
ISSUED_ATTEMPT = Template(_K, "issued attempt", f"attempt.v1.{_ISSUED}", "13.15", "issuer")
ISSUED_BY_SOURCE = Template(_K, "issued by source", f"bysource.v1.<digest:hex>.{_ISSUED}", "13.15", "issuer")
ACCEPTED_KEY = Template(_K, "accepted", "accepted.v1.<token:generation>", "13.15", "issuer at release")
ADMISSION_KEY = Template(_K, "admission", "admission.v1.<endpoint>.<run:id>", "14.8", "run admitter")
ADMISSION_REVOKED = Template(_K, "admission revoked", "revoked.v1.<endpoint>.<run:id>", "14.8", "run admitter")

PRESENCE_BUCKET = Template(_B, "presence bucket", "cotal_presence_<space>", "C8-69", "who is here")
CHANNELS_BUCKET = Template(_B, "channels bucket", "cotal_channels_<space>", "C8-69", "channel registry")
MEMBERSHIP_BUCKET = Template(_B, "membership bucket", "cotal_membership_<space>", "C8-70", "display feed")
ANYCAST_BUCKET = Template(_B, "anycast bucket", "cotal_anycast_<space>", "C8-71", "anycast records")
MEMBERS_BUCKET = Template(_B, "members bucket", "cotal_members_<space>", "D3", "durable membership")
ACL_BUCKET = Template(_B, "ACL bucket", "cotal_acl_<space>", "D3", "read ACLs")
DELIVERY_BUCKET = Template(_B, "delivery bucket", "cotal_delivery_<space>", "D3", "delivery leases")
MANAGER_BUCKET = Template(_B, "manager bucket", "cotal_manager_<space>", "D3", "manager leases")
SESSIONS_BUCKET = Template(_B, "sessions bucket", "cotal_sessions_<space>", "D3", "session ledger")
RECORDS_BUCKET = Template(_B, "records bucket", "cotal_records_<space>", "13.12", "records of all kinds")
AUTH_BUCKET = Template(_B, "auth bucket", "cotal_auth_<space>", "13.12", "auth path only")
ISSUED_BUCKET = Template(_B, "issued bucket", "cotal_issued_<space>", "13.15", "issuance evidence")
ACCEPTED_BUCKET = Template(_B, "accepted bucket", "cotal_accepted_<space>", "13.15", "accepted tokens")
ADMISSION_BUCKET = Template(_B, "admission bucket", "cotal_admission_<space>", "14.8", "run admissions")
ARTIFACTS_BUCKET = Template(
    _B, "artifacts bucket", "cotal_artifacts_<space>", "C3-20", "object store of artifact parts"
)
TRANSFER_BUCKET = Template(
    _B, "transfer bucket", "cotal_xfer_<space>_<instance>", "C8-18", "object store of transcripts"
)

TEMPLATES = listed(globals())


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """One KV bucket of a space: its name and the keys that stand in it."""

    name: Template
    keys: tuple[Template, ...]

    def bucket(self, space: str) -> str:
        return self.name.build(space=space)

    def stream(self, space: str) -> str:
        """Backing stream."""
        return KV_STREAM.build(bucket=self.bucket(space))

    def everything(self, space: str) -> str:
        """Subject of the backing stream: every key."""
        return KV_ALL.subtree(bucket=self.bucket(space))

    def subject(self, space: str, key: Template, **values: str | int) -> str:
        """Subject of one concrete key, to be written or asked for."""
        return KV_SUBJECT.build(bucket=self.bucket(space), key=self._own(key).build(**values))

    def filter(self, space: str, key: Template, **given: str | int) -> str:
        """Pattern of exactly the arity of a key template."""
        return f"{KV_ALL.build(bucket=self.bucket(space))}.{self._own(key).filter(**given)}"

    def subtree(self, space: str, key: Template, **given: str | int) -> str:
        """Pattern of everything below what is given of a key template."""
        return f"{KV_ALL.build(bucket=self.bucket(space))}.{self._own(key).subtree(**given)}"

    def parse(self, space: str, key: Template, subject: str) -> dict[str, str]:
        """Fields of a key from its subject; InvalidName for another bucket, another form or a bad value."""
        prefix = KV_ALL.build(bucket=self.bucket(space)) + "."
        if not subject.startswith(prefix):
            raise InvalidName(key.name, "the subject is of another bucket", key.row)
        return self._own(key).parse(subject[len(prefix) :])

    def _own(self, key: Template) -> Template:
        if key not in self.keys:
            raise TypeError(f"{key.name} is no key of the {self.name.name}")
        return key


PRESENCE = Bucket(PRESENCE_BUCKET, (PRESENCE_KEY,))
CHANNELS = Bucket(CHANNELS_BUCKET, (CHANNEL_KEY, CHANNEL_DEFAULTS))
MEMBERSHIP = Bucket(MEMBERSHIP_BUCKET, (MEMBERSHIP_KEY, MEMBERSHIP_FEED))
ANYCAST = Bucket(ANYCAST_BUCKET, (ANYCAST_KEY,))
MEMBERS = Bucket(MEMBERS_BUCKET, (MEMBER_KEY,))
ACL = Bucket(ACL_BUCKET, (ACL_KEY,))
DELIVERY = Bucket(DELIVERY_BUCKET, (DELIVERY_LEASE,))
MANAGER = Bucket(MANAGER_BUCKET, (MANAGER_LEASE, MANAGER_RENEWAL))
SESSIONS = Bucket(SESSIONS_BUCKET, (SESSION_KEY,))
RECORDS = Bucket(RECORDS_BUCKET, tuple(one for one in TEMPLATES if one.name.startswith("record ")))
AUTH = Bucket(
    AUTH_BUCKET, (*(one for one in TEMPLATES if one.name.startswith("auth ") and one.kind is _K), SESSION_KEY)
)
ISSUED = Bucket(ISSUED_BUCKET, (ISSUED_KEY, ISSUED_ATTEMPT, ISSUED_BY_SOURCE))
ACCEPTED = Bucket(ACCEPTED_BUCKET, (ACCEPTED_KEY,))
ADMISSION = Bucket(ADMISSION_BUCKET, (ADMISSION_KEY, ADMISSION_REVOKED))

BUCKETS = tuple(value for value in globals().values() if isinstance(value, Bucket))


@dataclass(frozen=True, slots=True, eq=False)
class ObjectBucket:
    """One object store bucket: its name template takes ``space``, and ``instance`` for a transfer."""

    name: Template

    def stream(self, **values: str) -> str:
        return OBJECT_STREAM.build(bucket=self.name.build(**values))

    def chunks(self, **values: str) -> str:
        """Pattern of every chunk (C3-20)."""
        return OBJECT_CHUNK.subtree(bucket=self.name.build(**values))

    def metas(self, **values: str) -> str:
        """Pattern of every meta record (C3-20)."""
        return OBJECT_META.subtree(bucket=self.name.build(**values))


ARTIFACTS = ObjectBucket(ARTIFACTS_BUCKET)
TRANSFER = ObjectBucket(TRANSFER_BUCKET)
OBJECT_BUCKETS = (ARTIFACTS, TRANSFER)


def meta_name(name: str) -> str:
    """Last token of a meta subject: padded base64url of the object's name (C8-22)."""
    return base64.urlsafe_b64encode(name.encode()).decode("ascii")


def member_channel(channel: str) -> str:
    """A concrete channel or a family ``team.>`` as a member key holds it: the final ``>`` stored as ``=`` (D3)."""
    if channel.endswith(".>"):
        return GRAMMARS["family"].check(channel)[:-1] + "="
    return GRAMMARS["channel"].check(channel)


def member_key(channel: str, lifecycle: Lifecycle) -> str:
    """Key of one durable membership."""
    return MEMBER_KEY.build(channel=member_channel(channel), **lifecycle.names)


def parse_member_key(key: str) -> tuple[str, Lifecycle]:
    """Channel or family, and lifecycle, of a member key; the inverse of ``member_key``."""
    found = MEMBER_KEY.parse(key)
    channel = found.pop("channel")
    family = channel[:-1] + ">" if channel.endswith("=") else channel
    _, _, dotted = key.partition("/")
    return family, Lifecycle.from_dot(dotted)
