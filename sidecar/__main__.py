"""``python -m sidecar``: the same entry point as the console script."""

from sidecar.cli.main import main

if __name__ == "__main__":
    main()
