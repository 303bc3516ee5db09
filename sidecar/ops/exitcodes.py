"""Exit codes of the long-running commands (sysexits numbers, so that a supervisor can tell retry from repair)."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a process ended. `help_text` is what the documentation and `--help` print."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    UNAVAILABLE = 69
    CANNOT_BIND = 73
    STORE = 74
    FENCED = 75
    CONFIG = 78

    @property
    def help_text(self) -> str:
        return _HELP[self]


_HELP = {
    ExitCode.OK: "stopped on request; the fencing token was given back and the store is clean",
    ExitCode.INTERNAL: "unexpected failure; the log has the details",
    ExitCode.USAGE: "wrong command line",
    ExitCode.UNAVAILABLE: "the witness cannot be reached or refused the activation; start again later",
    ExitCode.CANNOT_BIND: "a socket or the health listener cannot be opened, or somebody else serves there",
    ExitCode.STORE: "the store is locked, damaged, read-only or of a newer schema",
    ExitCode.FENCED: "authority was lost while running; every client was told, start again to activate anew",
    ExitCode.CONFIG: "the configuration, the authority key or the registry is missing, unsafe or not valid",
}


class CommandCode(IntEnum):
    """Why a command of the messaging plane ended; the numbers mean the same for ``sidecar coordinator``."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NO_CONNECTION = 3
    CREDENTIALS = 4
    UNKNOWN = 5

    @property
    def help_text(self) -> str:
        return _COMMAND_HELP[self]


_COMMAND_HELP = {
    CommandCode.OK: "done, or stopped with Ctrl-C",
    CommandCode.REFUSED: "refused by the broker or the delivery plane, or what was asked for is not so",
    CommandCode.USAGE: "wrong usage, an unsafe or unreadable creds file included",
    CommandCode.NO_CONNECTION: "no connection, or nobody answers; run it again later",
    CommandCode.CREDENTIALS: "the credential has ended, or the broker does not take it",
    CommandCode.UNKNOWN: "the outcome is unknown; the line says how to find out",
}


class CallCode(IntEnum):
    """Why a command at an endpoint ended. Those of ``CommandCode`` mean the same; what a call may have done is told
    apart, so that a script knows what it may repeat."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    NO_CONNECTION = 3
    CREDENTIALS = 4
    UNKNOWN = 5
    EXECUTED = 6
    PARTIAL = 7
    INTERRUPTED = 130

    @property
    def help_text(self) -> str:
        return _CALL_HELP[self]


_CALL_HELP = {
    CallCode.OK: "answered; or stopped with Ctrl-C, where that is the way to end it",
    CallCode.REFUSED: "refused, and not executed: by the broker, the endpoint, or because there is no such thing",
    CallCode.USAGE: "wrong usage: arguments that the command does not take, an unsafe or unreadable creds file",
    CallCode.NO_CONNECTION: "no connection, or nobody serves the endpoint: not executed; run it again later",
    CallCode.CREDENTIALS: "the credential has ended, or the broker does not take it",
    CallCode.UNKNOWN: "the outcome is unknown: it may have had its effect; look before you repeat it",
    CallCode.EXECUTED: "executed, and then refused: it had its effect and has no result",
    CallCode.PARTIAL: "scatter: not every instance answered; those that did are shown",
    CallCode.INTERRUPTED: "ended by Ctrl-C or SIGTERM; the line says whether anything was sent",
}


def call_documentation() -> str:
    """The same table for the commands of endpoints."""
    return "\n".join(f"{code.value:>3}  {code.help_text}" for code in CallCode)


def command_documentation() -> str:
    """The same table for the commands of the messaging plane."""
    return "\n".join(f"{code.value:>3}  {code.help_text}" for code in CommandCode)


def documentation() -> str:
    """The table of exit codes as plain text, one per line."""
    return "\n".join(f"{code.value:>3}  {code.help_text}" for code in ExitCode)
