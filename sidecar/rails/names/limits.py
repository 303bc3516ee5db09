"""Numbers of the messaging contract, once (Data D6). Lengths in characters, sizes in bytes, times as named."""

from __future__ import annotations

MAX_CHANNEL = 4_096
"""Whole channel, in UTF-16 code units; what is valid is ASCII, where that equals characters (C3-15)."""
MAX_DISPLAY_NAME = 128
MAX_DESCRIPTION = 200
MAX_INSTRUCTIONS = 2_000

MAX_TOKEN = 64
"""Owner, actor, endpoint token, ids and nonces (C13.2-09, -11). Space and role have no published bound: the same."""
MAX_COMMAND = 32
MAX_POOL = 32
MAX_RAIL_SUBJECT = 1_024
"""A request or reply subject of the endpoint rails, in bytes (C13.2-10)."""
MAX_SUBJECT = 8_192
"""Any subject; above the longest that the templates can build, so that a hostile one costs a length check."""
MAX_NAME = 255
"""A stream or consumer name, the server's own bound."""
MAX_KEY = MAX_CHANNEL + 256
MAX_SAFE_INTEGER = 2**53 - 1
MAX_MESSAGE_ID = 256
"""Characters of a message id that we publish: it is a header value too (C5-02). Received ids have no bound."""
COPY_HEADROOM = 6 * 1_024
"""Bytes that the headers of a backstop copy may take. Where a payload leaves less of the broker's ``max_payload`` than
that, a copy may not fit, and the member gets none."""

HEARTBEAT_MS = 2_000
LIVENESS_WINDOW_MS = 6_000
PRESENCE_TTL_MS = 6_000
ACK_WAIT_MS = 60_000
LIVENESS_PROBE_MS = 2_000
DELIVERY_LEASE_SECONDS = 30
"""Bucket TTL; the holder renews at half of it."""
MANAGER_LEASE_SECONDS = 10

CHAT_COUNT = 1_000
"""Default per sender and channel; a new space has no chat age, and neither age nor count for DM (C8-13)."""
BACKSTOP_COUNT = 1_000
"""Default of INBOX and DLV per member lifecycle, and what a copy without the stamp counts as (C8-51, C8-55)."""
HISTORY_AGE_MIN_SECONDS = 120
HISTORY_AGE_MAX_SECONDS = 3_650 * 86_400
BACKSTOP_AGE_MIN_SECONDS = 7_200
DUPLICATE_WINDOW_SECONDS = 120
BACKSTOP_DUPLICATE_WINDOW_SECONDS = 7_200
STAMP_AGE_SECONDS = 5
"""Longest time between the read of the DLV count and the write of a copy that carries it (C8-54)."""

MAX_MEMBERSHIP_VALUE = 262_144
MAX_ANYCAST_VALUE = 65_536
ANYCAST_ROW_SECONDS = 86_400
ANYCAST_SWEEP_SECONDS = 600
TRANSFER_IDLE_SECONDS = 600
TRANSFER_CHUNK = 128 * 1_024
WATCH_INACTIVE_SECONDS = 300
CATCHUP_INACTIVE_SECONDS = 30
READER_MAX_ACK_PENDING = 1_000
HISTORY_READER_SLOTS = 8
MAX_CONSUMERS = 100_000
"""Consumers of one stream: durables of members, readers, watchers."""
DEFAULT_PORT = 4_222
MIN_BROKER = (2, 12)

RECOVERY_LAG_SECONDS = 86_400
"""How far behind a writer of the control surface may be and still find what it has to do (C13.12)."""
EVENT_SECONDS = 86_400
FACT_SECONDS = 91 * 86_400
"""The longest of horizon, result and receipt retention, and one day (C13.12-26, OPEN C13.12-c)."""
MAX_DEADLINE_SECONDS = 30 * 86_400
TIMER_SECONDS = MAX_DEADLINE_SECONDS + 86_400
MAX_WORK_EXPIRY_SECONDS = 30 * 86_400
WORK_SECONDS = MAX_WORK_EXPIRY_SECONDS + 86_400
SUBMISSION_WINDOW_MS = 100
