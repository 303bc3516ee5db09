"""Durable and consumer names (C8-27, C8-34, Data D2).

Messaging names are dash-forms and parse back. Names of the control surface are compared whole (C13.2-06).
"""

from __future__ import annotations

from sidecar.rails.names.template import Kind, Template, listed

_C = Kind.CONSUMER

CHAT_HISTORY = Template(_C, "chat history", "chathist_<owner>-<actor>-<uid>", "C8-28", "CHAT; one read, then deleted")
DM = Template(_C, "direct messages", "dm_<owner>-<actor>-<uid>", "C8-29", "DM; bound, never created, by its agent")
ROLE = Template(_C, "role queue", "svc_<role>", "C8-32", "TASK; shared by all holders")
HANDOFF = Template(_C, "durable handoff", "dlv_<owner>-<actor>-<uid>", "C8-43", "DLV; bound by its agent")
REMOVED_LIVE_TAIL = Template(_C, "live tail, removed", "chat_<owner>-<actor>", "C0-06", "CHAT; must not exist")
FANOUT = Template(_C, "fan-out", "fanout", "D2", "CHAT; delivery daemon")
FANOUT_SHARD = Template(_C, "fan-out shard", "fanout_<shard:number>", "D2", "CHAT; more than one shard")
READER = Template(_C, "trusted reader", "reader", "D2", "INBOX; delivery daemon")
READER_SHARD = Template(_C, "trusted reader shard", "reader_<shard:number>", "D2", "INBOX; more than one shard")
CATCH_UP = Template(
    _C, "activation catch-up", "cu_<owner>-<actor>-<uid>_<generation:number>", "D2", "CHAT; ephemeral, from a cursor"
)
HISTORY_READER = Template(_C, "history reader", "hist_<reader:id>_<slot>", "CD-11", "CHAT observer, DM admin; 8 slots")
LIMITER = Template(_C, "limit preview", "limits", "C8-57", "ephemeral; counts what is younger than an age, never read")
WATCHER = Template(_C, "ordered watcher", "oc_<watcher:id>_<serial:number>", "D2", "presence and registry KV")

CANONICALIZER = Template(_C, "canonicalizer", "canon_<endpoint>", "13.9", "EPJ", whole=True)
POOL = Template(_C, "pool", "pool_<endpoint>_<pool>", "13.9", "EPW", whole=True)
TIMER_WRITER = Template(_C, "timer writer", "timerw_<space>", "13.9", "EPT_REQ", whole=True)
RECORD_WRITER = Template(_C, "record writer", "recw_<space>-<kind:id>", "13.9", "EPR", whole=True)
EFFECTS = Template(_C, "effects", "eff_<endpoint>", "13.9", "EPF", whole=True)
DECISIONS = Template(_C, "decisions", "dec_<uid>-<endpoint>", "13.9", "EPF, read service", whole=True)
GOALS = Template(_C, "goals", "goal_<uid>-<endpoint>", "13.9", "EPF, read service", whole=True)
EVENTS = Template(_C, "events", "eve_<uid>-<endpoint>-<grant>-<n:number>", "13.9", "EPE", whole=True)
RECORDS = Template(_C, "records", "rec_<uid>-<grant>-<n:number>", "13.9", "records KV", whole=True)
LEDGER_SCAN = Template(_C, "sealed ledger scan", "cotal-ledger-scan", "C13.9-M48", "auth KV", whole=True)
RECORDS_SCAN = Template(_C, "sealed records scan", "cotal-records-scan", "C13.9-M49", "records KV", whole=True)
RUN_REPLAY = Template(_C, "run replay", "wfj_<run:id>_<takeover:id>", "14.4", "WFJ; deleted after", whole=True)

TEMPLATES = listed(globals())
