"""``python -m sidecar`` and the console script: one entry point that may be interrupted from its first line on."""

import sys

_INTERRUPTED = 130


def run() -> None:
    """Run the command line; exits the process."""
    try:
        from sidecar.cli.main import main

        main()
    except KeyboardInterrupt:  # while modules were loaded: there is nothing to tell
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
