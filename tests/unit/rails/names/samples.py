"""One valid value of every grammar that a template uses."""

from __future__ import annotations

from sidecar.rails.names import Template

UID = "0123456789abcdefghijklmnop"
SAMPLES: dict[str, str] = {
    "space": "main",
    "owner": "local",
    "actor": "alice",
    "caller_owner": "local",
    "uid": UID,
    "instance": UID,
    "role": "reviewer",
    "word": "abc-DEF_1",
    "channel": "team.backend",
    "member_channel": "team.backend",
    "connection": "abcdefgh",
    "plane": "manager",
    "nonce": "n" * 22,
    "id": "id-1",
    "endpoint": "com_acme-x_deploy",
    "command": "run-start",
    "pool": "gpu-1",
    "grant": "g1",
    "generation": "0" * 31 + "f",
    "hex": "a" * 64,
    "base32": "abcdefghijklmnopqrstuvwxyz",
    "hash": "0a1b",
    "number": "7",
    "slot": "3",
    "half": "spec",
    "fact_leaf": "bind",
    "direction": "in",
    "topic": "ev.cluster.done",
    "epoch_token": "20261201T031016Z",
    "meta_name": "c2hhMjU2OmFi",
    "stream": "CHAT_main",
    "consumer": f"dm_local-alice-{UID}",
    "bucket": "cotal_presence_main",
    "key": "local.alice",
    "filter": "cotal.main.chat.*.*.team.>",
    "account": "A" * 56,
    "server": "N" + "A" * 55,
}


def sample(template: Template) -> dict[str, str]:
    """Values that ``build`` takes."""
    return {name: SAMPLES[one.grammar.name] for name, one in template.fields.items()}
