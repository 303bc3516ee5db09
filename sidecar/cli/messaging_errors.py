"""What the errors of the messaging plane mean for whoever typed a command: exit code, name, and what to do."""

from __future__ import annotations

from typing import Final

from sidecar.app.access import Expired, NoBroker, WrongStance
from sidecar.app.conversation import Unanswered
from sidecar.app.space_links import SpaceFailed
from sidecar.base.safefile import UnsafeFile
from sidecar.ops.exitcodes import CommandCode
from sidecar.rails.connection import ConnectionFault, NoResponders, PermissionViolation, Stopped
from sidecar.rails.connection.kv import Unreadable, WrongRevision
from sidecar.rails.connection.publishing import StoreRefused
from sidecar.rails.connection.streams import ConsumerGone
from sidecar.rails.endpoint.codes import CallError, CallRefused, Code, Outcome
from sidecar.rails.envelopes.errors import EnvelopeError
from sidecar.rails.messaging.anycast import BadStatus
from sidecar.rails.messaging.channels import TooManyChannels
from sidecar.rails.messaging.history import HistoryNotGranted, HistoryUnreadable
from sidecar.rails.messaging.identity import OtherPrincipal
from sidecar.rails.messaging.intake import IntakeRefused
from sidecar.rails.messaging.joinlink import InvalidLink
from sidecar.rails.messaging.readers import HistoryRefused, NoFreeName
from sidecar.rails.messaging.readers import HistoryUnreadable as ReaderUnreadable
from sidecar.rails.messaging.registry import InvalidConfig, RegistryUnreadable
from sidecar.rails.messaging.roster import AmbiguousName, NoSuchPeer, RosterUnreadable
from sidecar.rails.messaging.sending import Unconfirmed
from sidecar.rails.messaging.take_steps import BadTakerName
from sidecar.rails.names import InvalidName
from sidecar.rails.space.creds import InvalidCreds

EXPECTED: Final = (
    *(AmbiguousName, BadStatus, BadTakerName, CallError, ConnectionFault, EnvelopeError, Expired, HistoryNotGranted),
    *(
        ConsumerGone,
        IntakeRefused,
        HistoryUnreadable,
        InvalidConfig,
        InvalidCreds,
        InvalidLink,
        InvalidName,
        NoBroker,
        NoFreeName,
        NoSuchPeer,
    ),
    *(OSError, OtherPrincipal, ReaderUnreadable, RegistryUnreadable, RosterUnreadable, SpaceFailed, StoreRefused),
    *(TimeoutError, TooManyChannels, Unanswered, Unconfirmed, Unreadable, UnsafeFile, WrongRevision, WrongStance),
)
"""What may happen to a command. Anything else is a bug and keeps its traceback."""

_RENEW: Final = "renew it with: sidecar principal creds (a `sidecar dev` renews its own)"
Explained = tuple[CommandCode, str, str]


def explain(error: Exception) -> Explained:
    """Exit code, name and one line that says what to do. Decided by types and codes, never by texts."""
    return _of_connection(error) or _of_calls(error) or _of_input(error)


def _of_connection(error: Exception) -> Explained | None:
    match error:
        case Expired():
            return CommandCode.CREDENTIALS, "EXPIRED", f"{error}; {_RENEW}"
        case PermissionViolation():
            text = f"{error}; what this credential may read and post: sidecar channel list"
            return CommandCode.REFUSED, "DENIED", text
        case Stopped():
            return CommandCode.CREDENTIALS, "STOPPED", f"the connection has ended: {error}; {_RENEW}"
        case NoResponders():
            return CommandCode.NO_CONNECTION, "NOBODY", f"{error}; is the space made, and JetStream on?"
        case NoBroker():
            return CommandCode.NO_CONNECTION, "NO_CONNECTION", f"{error}; is the broker up, and the address right?"
        case ConnectionFault():
            return CommandCode.NO_CONNECTION, "NO_CONNECTION", str(error)
        case Unconfirmed():
            again = f"{error}; send it again with --id {error.message_id}: within two minutes it is stored once"
            return CommandCode.UNKNOWN, "UNCONFIRMED", again
        case StoreRefused():
            return CommandCode.REFUSED, "NOT_STORED", f"the broker does not store it: {error}"
        case _:
            return None


def _of_calls(error: Exception) -> Explained | None:
    match error:
        case CallRefused():
            return CommandCode.REFUSED, error.code.upper(), f"the delivery plane refuses: {error}"
        case CallError(outcome=Outcome.UNKNOWN):
            return CommandCode.UNKNOWN, error.code.upper(), f"the outcome is unknown: {error}; ask again"
        case CallError():
            hint = "is it up? ask: sidecar liveness" if error.code != Code.PERMISSION_DENIED else "not with these creds"
            return CommandCode.NO_CONNECTION, error.code.upper(), f"the delivery plane does not answer: {error}; {hint}"
        case Unanswered():
            text = f"{error}: what is stored may wait; ask: sidecar liveness, and run it again"
            return CommandCode.NO_CONNECTION, "UNANSWERED", text
        case BadStatus():
            return CommandCode.UNKNOWN, "BAD_ANSWER", f"the delivery plane's answer is none: {error}"
        case RosterUnreadable() | RegistryUnreadable() | HistoryUnreadable() | NoFreeName() | Unreadable():
            text = f"it could not be read to its end: {error}; run it again"
            return CommandCode.NO_CONNECTION, "UNREADABLE", text
        case HistoryNotGranted() | HistoryRefused():
            return CommandCode.REFUSED, "DENIED", f"{error}; what may be read: sidecar channel list"
        case ReaderUnreadable():
            return CommandCode.NO_CONNECTION, "UNREADABLE", f"{error}; run it again"
        case ConsumerGone() | IntakeRefused():
            text = f"there is no store of direct messages to read: {error}; make it with: sidecar principal add"
            return CommandCode.REFUSED, "NO_STORE", text
        case SpaceFailed():
            return CommandCode.REFUSED, "FAILED", str(error)
        case WrongRevision():
            return CommandCode.REFUSED, "CHANGED", "somebody changed it meanwhile; look at it and run it again"
        case _:
            return None


def _of_input(error: Exception) -> Explained:
    match error:
        case NoSuchPeer() | AmbiguousName():
            text = f"{error}; give the principal as OWNER.ACTOR: sidecar peers --all"
            return CommandCode.REFUSED, "NO_SUCH_PEER" if isinstance(error, NoSuchPeer) else "AMBIGUOUS", text
        case WrongStance() | TooManyChannels():
            return CommandCode.REFUSED, "WRONG_CREDENTIAL" if isinstance(error, WrongStance) else "TOO_MANY", str(error)
        case TimeoutError():
            return CommandCode.NO_CONNECTION, "TIMEOUT", "there was no answer in time; run it again"
        case OSError():
            where = f"{error.filename}: " if isinstance(error.filename, str) else ""
            return CommandCode.USAGE, "LOCAL", f"{where}{error.strerror or error}"
        case _:
            return CommandCode.USAGE, "USAGE", str(error) or type(error).__name__
