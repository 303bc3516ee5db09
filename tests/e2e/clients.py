"""The client library and the command line against a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sidecar.base.safefile import write_private
from sidecar.coordinator.authority.certificate import WitnessPin
from sidecar.coordinator.client import CoordinatorClient, ReconnectPolicy
from sidecar.coordinator.client_trust import Pins
from sidecar.coordinator.wire.enums import Scope
from tests.e2e.cluster import Cluster

PATIENT = ReconnectPolicy.lasting(60)


def witness_pin(cluster: Cluster) -> WitnessPin:
    """What a client is told of the cluster's witness."""
    return WitnessPin(cluster.provisioned.witness_id, cluster.provisioned.witness_public_key)


async def connect(cluster: Cluster, pins: Pins, name: str = "operator", **options: Any) -> CoordinatorClient:
    """A verified client of the cluster."""
    values: dict[str, Any] = {
        "witness": witness_pin(cluster),
        "scopes": int(Scope.WORK_READ | Scope.WORK_COMMAND),
        "reconnect": PATIENT,
        **options,
    }
    socket = values.pop("socket", cluster.socket)
    return await CoordinatorClient.connect(socket, cluster.key(name), pins=pins, **values)


def write_ready(cluster: Cluster) -> Path:
    """The ready file that ``--dev`` reads; its directory."""
    ready = {
        "coordinator": {
            "socket": str(cluster.socket),
            "admin_socket": cluster.ready["admin_socket"],
            "authority_fingerprint": cluster.ready["authority_fingerprint"],
            "coordinator_id": cluster.ready["coordinator_id"],
            "witness_id": cluster.provisioned.witness_id.hex(),
            "witness_public_key": cluster.provisioned.witness_public_key.hex(),
        },
        "workloads": cluster.provisioned.workloads,
    }
    write_private(cluster.layout.ready_file, json.dumps(ready).encode())
    return cluster.layout.root


def cli(
    *arguments: str, stdin: bytes | None = None, pass_fds: Sequence[int] = (), environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``sidecar coordinator ARGUMENTS`` to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "coordinator", *arguments],
        input=b"" if stdin is None else stdin,
        capture_output=True,
        timeout=90,
        check=False,
        pass_fds=pass_fds,
        env={**os.environ, **(environ or {})},
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def start_cli(*arguments: str) -> subprocess.Popen[str]:
    """Start ``sidecar coordinator ARGUMENTS``; lines come as they are printed."""
    return subprocess.Popen(
        [sys.executable, "-m", "sidecar", "coordinator", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
