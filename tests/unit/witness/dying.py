"""A process that dies by SIGKILL at a named step of a commit: DIRECTORY REQUEST STEP (see test_store)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from sidecar.coordinator.wire.ids import AuthorityEpoch
from tests.unit.witness.rig import COORDINATOR, Clock, LocalWitness, incarnation


def main(directory: Path, request: str, deadly: str) -> None:
    clock = Clock()
    witness = LocalWitness(directory, clock)
    certificate = None
    if request != "activate":
        certificate = witness.activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))

    def step(name: str) -> None:
        if name == deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    witness.step = step
    if certificate is None:
        witness.activate(COORDINATOR, AuthorityEpoch(5), incarnation(1))
    elif request == "renew":
        clock.advance(30)
        witness.renew(certificate)
    else:
        witness.relinquish(COORDINATOR, certificate.activation_sequence, certificate.fencing_token)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
