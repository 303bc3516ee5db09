"""Streams of a space: their names and the subjects that they capture (C8, 13.12)."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.rails.names import planes, subjects
from sidecar.rails.names.buckets import BUCKETS
from sidecar.rails.names.template import Kind, Template, listed

_T = Kind.STREAM

CHAT_STREAM = Template(_T, "chat stream", "CHAT_<space>", "C8-02", "posts")
DM_STREAM = Template(_T, "DM stream", "DM_<space>", "C8-03", "direct messages; never Direct Get")
TASK_STREAM = Template(_T, "task stream", "TASK_<space>", "C8-04", "anycast work queue; never Direct Get")
INBOX_STREAM = Template(_T, "inbox stream", "INBOX_<space>", "C8-40", "copies before re-authorization")
DLV_STREAM = Template(_T, "handoff stream", "DLV_<space>", "C8-43", "copies for members")
EPJ_STREAM = Template(_T, "submission stream", "EPJ_<space>", "13.12", "untrusted submissions")
EPF_STREAM = Template(_T, "fact stream", "EPF_<space>", "13.12", "canonical facts")
EPE_STREAM = Template(_T, "event stream", "EPE_<space>", "13.12", "events")
EPT_REQ_STREAM = Template(_T, "timer request stream", "EPT_REQ_<space>", "13.12", "schedule requests")
EPT_STREAM = Template(_T, "timer stream", "EPT_<space>", "13.12", "armed schedules and fires")
EPR_STREAM = Template(_T, "record write stream", "EPR_<space>", "13.12", "record writes")
EPW_STREAM = Template(_T, "pool stream", "EPW_<space>", "13.12", "pool items")
EPC_STREAM = Template(_T, "contract stream", "EPC_<space>", "13.12", "contract artifacts")
WFJ_STREAM = Template(_T, "run journal stream", "WFJ_<space>", "14.4", "run journals")

TEMPLATES = listed(globals())


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A stream's name and the templates it captures. ``whole`` captures every subject below the space and the kind
    token; otherwise exactly the arity of the template, which keeps the leaves of one family apart."""

    name: Template
    captures: tuple[Template, ...]
    whole: bool = True

    def stream(self, space: str) -> str:
        return self.name.build(space=space)

    def subjects(self, space: str) -> list[str]:
        """The ``subjects`` of the stream's configuration."""
        if self.whole:
            return [one.subtree(space=space) for one in self.captures]
        return [one.filter(space=space) for one in self.captures]


CHAT = Stream(CHAT_STREAM, (subjects.CHAT,))
DM = Stream(DM_STREAM, (subjects.INST,))
TASK = Stream(TASK_STREAM, (subjects.SVC,))
INBOX = Stream(INBOX_STREAM, (subjects.DINBOX,))
DLV = Stream(DLV_STREAM, (subjects.DLV,))
EPJ = Stream(EPJ_STREAM, (planes.SUBMISSION_PLANE,))
EPF = Stream(EPF_STREAM, (planes.FACT,))
EPE = Stream(EPE_STREAM, (planes.EVENT,))
EPT_REQ = Stream(EPT_REQ_STREAM, (planes.TIMER_SCHEDULE,), whole=False)
EPT = Stream(EPT_STREAM, (planes.TIMER_ARMED, planes.TIMER_FIRE), whole=False)
EPR = Stream(EPR_STREAM, (planes.RECORD_WRITE,))
EPW = Stream(EPW_STREAM, (planes.POOL_ITEM,))
EPC = Stream(EPC_STREAM, (planes.CONTRACT,))
WFJ = Stream(WFJ_STREAM, (planes.RUN_JOURNAL,), whole=False)

MESSAGING = (CHAT, DM, TASK, INBOX, DLV)
CONTROL = (EPJ, EPF, EPE, EPT_REQ, EPT, EPR, EPW, EPC, WFJ)
STREAMS = (*MESSAGING, *CONTROL)


def all_streams(space: str) -> dict[str, list[str]]:
    """Every stream of a space with its subjects, KV buckets included; what the streams of two spaces never share."""
    found = {one.stream(space): one.subjects(space) for one in STREAMS}
    return found | {one.stream(space): [one.everything(space)] for one in BUCKETS}
