"""The connection to the broker: one vocabulary of faults, calls that fail at once, and links that heal."""

from sidecar.rails.connection.connection import Connection
from sidecar.rails.connection.credentials import Credentials
from sidecar.rails.connection.faults import (
    ConnectionFault,
    CredentialsRefused,
    Fault,
    NoResponders,
    NotConnected,
    NotSent,
    PermissionViolation,
    Said,
    Stopped,
)
from sidecar.rails.connection.logins import OpenLogin
from sidecar.rails.connection.policy import Policy, State
from sidecar.rails.connection.subscription import Subscription, SubscriptionClosed
from sidecar.rails.connection.watch import Happening, Notice, Watch

__all__ = [
    "Connection",
    "ConnectionFault",
    "Credentials",
    "CredentialsRefused",
    "Fault",
    "Happening",
    "NoResponders",
    "NotConnected",
    "NotSent",
    "Notice",
    "OpenLogin",
    "PermissionViolation",
    "Policy",
    "Said",
    "State",
    "Stopped",
    "Subscription",
    "SubscriptionClosed",
    "Watch",
]
