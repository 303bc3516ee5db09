"""The contract of the specification's vectors: documents, and digests as they are printed there."""

from __future__ import annotations

import json
from typing import Any

VOID = "sha256:bcde375ebd4cbacf651311181173836b169d5a360c6ac158c6a2cdaf49be3f61"
VOID_CLOSURE = "sha256:1db0472aaee8e6b9d8d3d430ee021a1b6efc559ab7c0b99186898c972c53dd2d"
MEMBER_TEXT = '{"$schema":"https://json-schema.org/draft/2020-12/schema","pattern":"^[a-z0-9-]{1,32}$","type":"string"}'
MEMBER_DIGEST = "sha256:357470bed3e33ca5cce58dc4fc2cd3ab3f5a8cd0822e8fd5e293544260d7bc6b"
INPUT_TEXT = (
    '{"$schema":"https://json-schema.org/draft/2020-12/schema","additionalProperties":false,"properties":{"tag":'
    '{"$ref":"cotal:sha256:357470bed3e33ca5cce58dc4fc2cd3ab3f5a8cd0822e8fd5e293544260d7bc6b"},"text":{"maxLength":256,'
    '"type":"string"}},"required":["text"],"type":"object"}'
)
INPUT_DIGEST = "sha256:aa8559724c3cf0751ffcbefd79ee1601498872b96a47111e64eaa3fe2820301c"
INPUT_MANIFEST = f'{{"members":["{MEMBER_DIGEST}"],"root":"{INPUT_DIGEST}","v":1}}'
INPUT_CLOSURE = "sha256:ce5eccc45953fd971d7c17da6a143affc3647788635b093e886a93a197b952d9"
OUTPUT_TEXT = (
    '{"$schema":"https://json-schema.org/draft/2020-12/schema","additionalProperties":false,"properties":{"at":'
    '{"minimum":0,"type":"integer"},"text":{"type":"string"}},"required":["text","at"],"type":"object"}'
)
OUTPUT_DIGEST = "sha256:56f73cb56522af47ce6b5c1c44eaac9ce366a7d72d0b4a164c8de119359cb62e"
OUTPUT_CLOSURE = "sha256:84edcc84c2124c953c9cfaba78a70c42e5e86203d1d2bf606ffc460618ed5fcf"
CLUSTER_TEXT = (
    '{"attributes":[],"commands":[{"capability":"acme.echo","class":"ephemeral","inputDigest":'
    '"sha256:ce5eccc45953fd971d7c17da6a143affc3647788635b093e886a93a197b952d9","name":"echo","outputDigest":'
    '"sha256:84edcc84c2124c953c9cfaba78a70c42e5e86203d1d2bf606ffc460618ed5fcf","targeted":false},{"admissionCeiling":'
    '{"maxBytes":65536,"maxDepth":16,"maxItems":512},"capability":"acme.drain","class":"journal","inputDigest":'
    '"sha256:1db0472aaee8e6b9d8d3d430ee021a1b6efc559ab7c0b99186898c972c53dd2d","modes":["self","owner"],"name":"drain",'
    '"outputDigest":"sha256:1db0472aaee8e6b9d8d3d430ee021a1b6efc559ab7c0b99186898c972c53dd2d","targeted":true}],'
    '"events":[],"revision":1,"urn":"com.acme.echo"}'
)
CLUSTER_DIGEST = "sha256:08ab9d9810b216f0d3ab32bbf882d946a2e3def0c42fc8b5e55f5f1638ab1e3a"
CLUSTER_CLOSURE = "sha256:abbe94dc85f82edeaf299f0d04ccdb40b3a503a334f0212ed3c27b5674529dc1"
CLUSTER_2_DIGEST = "sha256:38ac951510410df59f11a527bc3467cceedb45e29e5fcd05899d74aaf5bae73d"
CLUSTER_2_CLOSURE = "sha256:14b57f77c465f7878ef0e8300dc245372a4240b5aa7b77d1451d6a75d01f0d95"

MEMBER: dict[str, Any] = json.loads(MEMBER_TEXT)
INPUT: dict[str, Any] = json.loads(INPUT_TEXT)
OUTPUT: dict[str, Any] = json.loads(OUTPUT_TEXT)


def cluster(**changes: Any) -> dict[str, Any]:
    """The cluster document of revision 1, changed."""
    return {**json.loads(CLUSTER_TEXT), **changes}


def cluster_2() -> dict[str, Any]:
    """The same under protocol 2: revision 2, with effects."""
    found = cluster(revision=2)
    for command, effect in zip(found["commands"], ("read", "write"), strict=True):
        command["effect"] = effect
    return found


def with_command(at: int = 0, without: str = "", **changes: Any) -> dict[str, Any]:
    """The cluster with one command changed."""
    found = cluster()
    found["commands"][at] |= changes
    found["commands"][at].pop(without, None)
    return found
