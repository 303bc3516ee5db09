"""``python -m sidecar`` and the console script: one entry point that may be interrupted from its first line on."""

import os
import sys

_INTERRUPTED = 130
_STREAMS = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))


def run() -> None:
    """Run the command line; exits the process."""
    _fill_streams()
    try:
        from sidecar.cli.main import main

        main()
    except KeyboardInterrupt:  # while modules were loaded: there is nothing to tell
        sys.exit(_INTERRUPTED)


def _fill_streams() -> None:
    """Put something in the place of every standard stream that the caller closed.

    Otherwise the next file or socket would be opened there, and what is printed would go into it. Input and output are
    open the wrong way round, so that using them fails as on a closed stream; what is said on standard error is lost.
    """
    for number, (name, mode, flags) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it lives as long as the process


if __name__ == "__main__":
    run()
