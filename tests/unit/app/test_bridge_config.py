"""The configuration of the bridge: read whole or refused by the key that is wrong."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.bridge_config import load
from sidecar.base.ed25519 import SigningKey
from sidecar.base.secret import Secret
from sidecar.ops.config import ConfigError

PUBLIC = SigningKey(Secret(bytes(range(32)))).public_key.hex()
WHOLE: dict[str, Any] = {
    "space": "main",
    "url": "nats://127.0.0.1:4222",
    "root": "nats",
    "owner": "local",
    "coordinator": {
        "socket": "run/coordinator.sock",
        "key": "keys/operator.ed25519",
        "pins": "/var/pins.json",
        "witnessId": "0f" * 16,
        "witnessPublicKey": PUBLIC,
        "authority": "sha256:" + "ab" * 32,
        "artifacts": True,
    },
    "metrics": "127.0.0.1:9999",
    "log": {"level": "debug"},
}


def written(directory: Path, value: Any) -> Path:
    file = directory / "bridge.json"
    file.write_text(json.dumps(value))
    return file


def test_every_key_is_read_and_paths_begin_at_the_file(tmp_path: Path) -> None:
    config = load(written(tmp_path, WHOLE))
    assert (config.where.space, config.where.root, config.owner) == ("main", tmp_path / "nats", "local")
    coordinator = config.coordinator
    assert coordinator.socket == tmp_path / "run" / "coordinator.sock"
    assert coordinator.key == f"file:{tmp_path / 'keys' / 'operator.ed25519'}"
    assert coordinator.pins == Path("/var/pins.json")
    assert coordinator.witness is not None
    assert coordinator.witness.public_key.hex() == PUBLIC
    assert coordinator.authority == b"\xab" * 32
    assert coordinator.artifacts
    assert config.metrics.port == 9999


@pytest.mark.parametrize("key", ["fd:7", "credential:operator", "file:/keys/k"])
def test_a_key_may_come_from_elsewhere(tmp_path: Path, key: str) -> None:
    value = copy.deepcopy(WHOLE)
    value["coordinator"]["key"] = key
    assert load(written(tmp_path, value)).coordinator.key == key


def test_what_has_a_default_may_be_left_out(tmp_path: Path) -> None:
    value = {name: WHOLE[name] for name in ("space", "url", "root", "owner")}
    value["coordinator"] = {name: WHOLE["coordinator"][name] for name in ("socket", "key", "pins")}
    coordinator = load(written(tmp_path, value)).coordinator
    assert (coordinator.witness, coordinator.authority, coordinator.artifacts) == (None, None, False)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("space", "a b"),
        ("url", "nats://user:secret@h:1"),
        ("owner", "A B"),
        ("owner", None),
        ("metrics", "0.0.0.0:1"),
        ("log.level", "loud"),
        ("more", 1),
        ("coordinator", []),
        ("coordinator.socket", None),
        ("coordinator.key", 5),
        ("coordinator.pins", ""),
        ("coordinator.witnessId", "0f"),
        ("coordinator.witnessPublicKey", None),
        ("coordinator.authority", "ab" * 32),
        ("coordinator.artifacts", "yes"),
        ("coordinator.scopes", 63),
    ],
)
def test_what_is_wrong_is_named_and_nothing_of_a_login_is_shown(tmp_path: Path, path: str, value: Any) -> None:
    whole = copy.deepcopy(WHOLE)
    *above, name = path.split(".")
    table = whole
    for part in above:
        table = table[part]
    table[name] = value
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, whole))
    assert path in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "missing.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        load(tmp_path / "bad.json")
    assert os.listdir(tmp_path) == ["bad.json"]
