"""Endpoint planes: events, facts, timers, record writes, artifacts, pools, sessions, the run journal (13.2)."""

from __future__ import annotations

from sidecar.rails.names.template import Kind, Template, listed

_S = Kind.SUBJECT
_RUNNING = "<endpoint>.<instance>.<epoch:number>"
_CALLER = "<owner>.<actor>.<uid>"

EVENT = Template(_S, "event", f"cotal.<space>.epe.{_RUNNING}.<topic...>", "C13.2-58", "serving instance; not a fact")
EVENT_CLUSTER = Template(
    _S, "cluster event", f"cotal.<space>.epe.{_RUNNING}.ev.<cluster:word>.<event:word>", "13.2", "declared event"
)
EVENT_GOAL = Template(
    _S, "goal event", f"cotal.<space>.epe.{_RUNNING}.goal.{_CALLER}.<goal:id>.<leaf:word>", "13.2", "progress of a goal"
)
EVENT_CHECKPOINT = Template(
    _S, "checkpoint event", f"cotal.<space>.epe.{_RUNNING}.cp.<token:id>.<leaf:word>", "13.2", "about a checkpoint"
)

FACT = Template(_S, "fact", "cotal.<space>.epf.<endpoint>.<topic...>", "C13.2-63", "mediated writers, create-only")
FACT_DECISION = Template(_S, "decision", f"cotal.<space>.epf.<endpoint>.dec.{_CALLER}.<id>", "13.2", "canonicalizer")
FACT_QUARANTINE = Template(
    _S, "quarantine", "cotal.<space>.epf.<endpoint>.quar.<sequence:number>", "13.2", "canonicalizer, poison"
)
FACT_GOAL = Template(
    _S, "goal fact", f"cotal.<space>.epf.<endpoint>.goal.{_CALLER}.<goal:id>.<fact_leaf>", "13.2", "bind, result"
)
FACT_WORK = Template(
    _S, "work fact", f"cotal.<space>.epf.<endpoint>.wrk.<pool>.{_CALLER}.<id>", "13.2", "terminal of a pool item"
)
FACT_EFFECT = Template(_S, "effect fact", f"cotal.<space>.epf.<endpoint>.eff.{_CALLER}.<id>", "13.2", "ran, cancelled")
FACT_CHECKPOINT = Template(_S, "checkpoint fact", "cotal.<space>.epf.<endpoint>.cp.<token:id>", "13.2", "one use")
FACT_RECEIPT = Template(
    _S,
    "receipt",
    f"cotal.<space>.epf.<endpoint>.receipt.{_CALLER}.<id>.<sequence:number>",
    "C13.2-69",
    "one per execution",
)

SUBMISSION_PLANE = Template(_S, "submission plane", "cotal.<space>.epj.<endpoint>", "C13.2-62", "everything below")
TIMER_SCHEDULE = Template(
    _S, "timer schedule", f"cotal.<space>.ept.{_RUNNING}.<timer:id>.schedule", "C13.2-64", "serving instance asks"
)
TIMER_ARMED = Template(
    _S, "timer armed", f"cotal.<space>.ept.{_RUNNING}.<timer:id>.armed", "C13.2-66", "timer writer alone"
)
TIMER_FIRE = Template(_S, "timer fire", f"cotal.<space>.ept.{_RUNNING}.<timer:id>.fire", "C13.2-68", "broker alone")
RECORD_WRITE = Template(
    _S,
    "record write",
    f"cotal.<space>.epr.{_RUNNING}.<kind:id>.<qualifier...:topic>",
    "C13.2-70",
    "status of an instance",
)
CONTRACT = Template(_S, "contract artifact", "cotal.<space>.epc.<digest:hex>", "13.2", "create-only")
POOL_ITEM = Template(
    _S, "pool item", f"cotal.<space>.epw.<endpoint>.<pool>.{_CALLER}.<id>", "13.2", "acceptance identity at the end"
)
SESSION = Template(
    _S,
    "session frame",
    "cotal.<space>.eps.<endpoint>.<session:id>.<epoch:number>.<direction>",
    "13.2",
    "never captured",
)
RUN_JOURNAL = Template(_S, "run journal", "cotal.<space>.wfj.<run:id>", "14.4", "run driver")

TEMPLATES = listed(globals())
