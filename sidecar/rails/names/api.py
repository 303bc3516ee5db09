"""Subjects of the broker's own interfaces, spelled in full: JetStream API, acks, flow control, system account.

They are what grants name and what raw requests are sent to. A consumer is created on the subject that carries its
filter, so that a permission can pin it (C8-28); the forms without a filter exist for denies and trusted profiles.
"""

from __future__ import annotations

from sidecar.rails.names.template import Kind, Template, listed

_API = Kind.API

INFO = Template(_API, "account info", "$JS.API.INFO", "C9", "account limits; also the reachability check")

STREAM_CREATE = Template(_API, "stream create", "$JS.API.STREAM.CREATE.<stream>", "C8-01", "provisioner")
STREAM_UPDATE = Template(_API, "stream update", "$JS.API.STREAM.UPDATE.<stream>", "C9", "provisioner")
STREAM_INFO = Template(_API, "stream info", "$JS.API.STREAM.INFO.<stream>", "C9", "configuration and state")
STREAM_DELETE = Template(_API, "stream delete", "$JS.API.STREAM.DELETE.<stream>", "C9", "teardown only")
STREAM_PURGE = Template(_API, "stream purge", "$JS.API.STREAM.PURGE.<stream>", "C9", "purger")
STREAM_NAMES = Template(_API, "stream names", "$JS.API.STREAM.NAMES", "C9", "operator")
STREAM_LIST = Template(_API, "stream list", "$JS.API.STREAM.LIST", "C9", "operator")
MESSAGE_GET = Template(_API, "leader get", "$JS.API.STREAM.MSG.GET.<stream>", "C9", "read served by the leader")
MESSAGE_DELETE = Template(_API, "message delete", "$JS.API.STREAM.MSG.DELETE.<stream>", "C8.1-57", "delivery daemon")
DIRECT_GET = Template(_API, "direct get", "$JS.API.DIRECT.GET.<stream>", "C9", "by body, also batched")
DIRECT_GET_LAST = Template(
    _API, "direct get, last by subject", "$JS.API.DIRECT.GET.<stream>.<filter...>", "C9", "one stored subject"
)

CONSUMER_CREATE = Template(_API, "consumer create, bare", "$JS.API.CONSUMER.CREATE.<stream>", "C9", "name in the body")
CONSUMER_CREATE_NAMED = Template(
    _API, "consumer create, named", "$JS.API.CONSUMER.CREATE.<stream>.<consumer>", "C9", "no filter, or several"
)
CONSUMER_CREATE_FILTERED = Template(
    _API,
    "consumer create, filtered",
    "$JS.API.CONSUMER.CREATE.<stream>.<consumer>.<filter...>",
    "C8-28",
    "the server compares the filter with the body",
)
DURABLE_CREATE = Template(
    _API, "durable create, old form", "$JS.API.CONSUMER.DURABLE.CREATE.<stream>.<consumer>", "C9", "denied to agents"
)
CONSUMER_INFO = Template(_API, "consumer info", "$JS.API.CONSUMER.INFO.<stream>.<consumer>", "C8-39", "bind")
CONSUMER_NEXT = Template(_API, "next message", "$JS.API.CONSUMER.MSG.NEXT.<stream>.<consumer>", "C8-39", "pull")
CONSUMER_DELETE = Template(_API, "consumer delete", "$JS.API.CONSUMER.DELETE.<stream>.<consumer>", "C8-28", "own only")
CONSUMER_NAMES = Template(_API, "consumer names", "$JS.API.CONSUMER.NAMES.<stream>", "C9", "operator")
CONSUMER_LIST = Template(_API, "consumer list", "$JS.API.CONSUMER.LIST.<stream>", "C9", "operator")
ACK = Template(_API, "ack", "$JS.ACK.<stream>.<consumer>", "C8-39", "everything below is one delivery's ack")
FLOW = Template(_API, "flow control", "$JS.FC", "C9", "everything below")
FLOW_STREAM = Template(_API, "flow control of a stream", "$JS.FC.<stream>", "C13.9-M10", "everything below")

USER_INFO = Template(_API, "own identity", "$SYS.REQ.USER.INFO", "C13.9-M01", "what the broker knows the asker as")
CLAIMS_UPDATE = Template(_API, "account push", "$SYS.REQ.CLAIMS.UPDATE", "C9", "full resolver")
CLAIMS_DELETE = Template(_API, "account removal", "$SYS.REQ.CLAIMS.DELETE", "C9", "full resolver")
CLAIMS_LIST = Template(_API, "account list", "$SYS.REQ.CLAIMS.LIST", "C9", "full resolver")
CLAIMS_LOOKUP = Template(_API, "account lookup", "$SYS.REQ.ACCOUNT.<account>.CLAIMS.LOOKUP", "C9", "full resolver")
CONNECTIONS = Template(_API, "connections", "$SYS.REQ.ACCOUNT.<account>.CONNZ", "CB-117", "membership view")
CONNECTED = Template(_API, "connected", "$SYS.ACCOUNT.<account>.CONNECT", "CB-117", "event")
DISCONNECTED = Template(_API, "disconnected", "$SYS.ACCOUNT.<account>.DISCONNECT", "CB-117", "event")
KICK = Template(_API, "kick", "$SYS.REQ.SERVER.<server>.KICK", "CB-118", "evictor")
PING_VARZ = Template(_API, "server figures", "$SYS.REQ.SERVER.PING.VARZ", "C9", "doctor: version and limits")
PING_STATSZ = Template(_API, "server statistics", "$SYS.REQ.SERVER.PING.STATSZ", "OPEN C13.1-f", "barrier: how many")
PING_JSZ = Template(_API, "JetStream figures", "$SYS.REQ.SERVER.PING.JSZ", "C9", "doctor: streams and consumers")

TEMPLATES = listed(globals())

RESERVED_ROOTS = ("$JS.", "$KV.", "$SYS.", "$O.", "_INBOX.")
"""What no application message is published to (C3-19)."""
INBOX_ROOT = "_INBOX_"
"""How the inbox of a connection begins: its own first token."""


def reserved(subject: str) -> bool:
    """Whether a subject is below a reserved root, or an inbox in its own spelling (C3-19)."""
    return subject.startswith((*RESERVED_ROOTS, INBOX_ROOT))
