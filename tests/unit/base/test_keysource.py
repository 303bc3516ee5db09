"""Private keys come from files, descriptors and the credential store, and show up nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sidecar.base.ed25519 import SigningKey
from sidecar.base.keysource import create_seed_file, load_seed_file, load_signing_key
from sidecar.base.safefile import UnsafeFile, write_private
from sidecar.base.secret import Secret
from tests.canary import CANARY, spellings_in

PUBLIC = SigningKey(Secret(CANARY)).public_key


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    path = tmp_path / "workload.key"
    write_private(path, Secret(CANARY))
    return path


@pytest.mark.req("W9-14")
def test_an_owner_only_file(seed_file: Path) -> None:
    assert load_signing_key(str(seed_file)).public_key == PUBLIC
    assert load_signing_key(f"file:{seed_file}").public_key == PUBLIC


@pytest.mark.req("W9-14")
def test_an_unsafe_file_is_refused(seed_file: Path) -> None:
    seed_file.chmod(0o644)
    with pytest.raises(UnsafeFile, match="chmod 600"):
        load_signing_key(str(seed_file))
    with pytest.raises(FileNotFoundError):
        load_signing_key("file:/nonexistent/key")


@pytest.mark.req("W9-14")
def test_an_inherited_descriptor_is_read_and_closed() -> None:
    reader, writer = os.pipe()
    os.write(writer, CANARY[:10])
    os.write(writer, CANARY[10:])
    os.close(writer)
    assert load_signing_key(f"fd:{reader}").public_key == PUBLIC
    with pytest.raises(UnsafeFile, match="cannot be read"):
        load_signing_key(f"fd:{reader}")


@pytest.mark.req("W9-14", "W9-17")
@pytest.mark.parametrize("content", [b"", CANARY[:31], CANARY + b"\n", CANARY * 2, CANARY.hex().encode()], ids=len)
def test_anything_but_32_bytes_is_refused_unseen(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    write_private(path, content)
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    for source in (str(path), f"fd:{reader}"):
        with pytest.raises(UnsafeFile) as refused:
            load_signing_key(source)
        assert not spellings_in(str(refused.value))


@pytest.mark.req("W9-14", "W9-16")
@pytest.mark.parametrize("source", ["fd:", "fd:x", "fd:-1", "fd:3.0", f"fd:{CANARY.hex()}x", "fd:\u0663"])
def test_a_descriptor_is_a_number(source: str) -> None:
    with pytest.raises(UnsafeFile):
        load_signing_key(source)


@pytest.mark.req("W9-14", "W9-15")
def test_a_credential_of_the_service_manager(tmp_path: Path) -> None:
    credential = tmp_path / "workload"
    credential.write_bytes(CANARY)
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    for mode in (0o400, 0o600, 0o440):
        credential.chmod(mode)
        assert load_signing_key("credential:workload", environ).public_key == PUBLIC
    for mode in (0o444, 0o460, 0o402):
        credential.chmod(mode)
        with pytest.raises(UnsafeFile, match="only this service"):
            load_signing_key("credential:workload", environ)


@pytest.mark.req("W9-14")
@pytest.mark.parametrize(
    ("name", "environ"),
    [
        ("workload", {}),
        ("", {"CREDENTIALS_DIRECTORY": "/"}),
        ("..", {"CREDENTIALS_DIRECTORY": "/etc"}),
        ("a/b", {"CREDENTIALS_DIRECTORY": "/etc"}),
        ("../passwd", {"CREDENTIALS_DIRECTORY": "/etc/ssl"}),
    ],
)
def test_a_credential_is_a_plain_name_in_a_known_directory(name: str, environ: Mapping[str, str]) -> None:
    with pytest.raises(UnsafeFile):
        load_signing_key(f"credential:{name}", environ)


@pytest.mark.req("W9-14")
def test_a_credential_link_is_not_followed(seed_file: Path) -> None:
    (seed_file.parent / "link").symlink_to(seed_file)
    with pytest.raises(OSError, match="Too many levels"):
        load_signing_key("credential:link", {"CREDENTIALS_DIRECTORY": str(seed_file.parent)})


HOLDER = """
import sys
from sidecar.base.keysource import load_signing_key
key = load_signing_key(sys.argv[1])
print(key.public_key.hex(), key, flush=True)
sys.stdin.read()
"""


@pytest.mark.req("W9-14", "W9-15", "W9-16", "W10-10", "P2-13")
@pytest.mark.parametrize("kind", ["file", "fd", "credential"])
def test_a_running_process_shows_no_key_in_arguments_or_environment(seed_file: Path, kind: str) -> None:
    with seed_file.open("rb") as stream:
        descriptor = stream.fileno()
        source = {"file": str(seed_file), "fd": f"fd:{descriptor}", "credential": f"credential:{seed_file.name}"}[kind]
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[descriptor] if kind == "fd" else [],
            env={**os.environ, "CREDENTIALS_DIRECTORY": str(seed_file.parent)},
        )
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(PUBLIC.hex().encode())
        for name in ("cmdline", "environ"):
            assert not spellings_in(Path(f"/proc/{process.pid}/{name}").read_bytes())
        rest, errors = process.communicate(b"")
    assert not spellings_in(line + rest + errors)


@pytest.mark.req("W2-16", "W2-17", "W9-17")
def test_a_created_seed_file_holds_a_checked_key(tmp_path: Path) -> None:
    key = create_seed_file(tmp_path / "key", lambda size: CANARY[:size])
    assert key.public_key == PUBLIC == load_seed_file(tmp_path / "key").public_key
    assert (tmp_path / "key").read_bytes() == CANARY
    with pytest.raises(FileExistsError):
        create_seed_file(tmp_path / "key", os.urandom)
    assert (tmp_path / "key").read_bytes() == CANARY


@pytest.mark.req("W2-16")
def test_no_file_appears_when_the_random_source_fails(tmp_path: Path) -> None:
    def broken(_: int) -> bytes:
        raise OSError("no entropy")

    with pytest.raises(OSError, match="no entropy"):
        create_seed_file(tmp_path / "key", broken)
    assert not list(tmp_path.iterdir())


@pytest.mark.req("W2-17")
def test_the_derived_key_is_checked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No seed gives a weak key, so the check itself is seen by what it is called with and when."""
    from sidecar.base import ed25519

    checked: list[bytes] = []
    real = ed25519.check_public_key

    def check(key: bytes) -> None:
        assert not list(tmp_path.iterdir())
        checked.append(key)
        real(key)

    monkeypatch.setattr(ed25519, "check_public_key", check)
    assert create_seed_file(tmp_path / "key", os.urandom).public_key in checked
