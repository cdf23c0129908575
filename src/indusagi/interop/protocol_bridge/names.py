"""The name a model calls a remote tool by.

Identity is the server's id and the tool's own name, and it is carried, never read back from here.
The model's name is `<server>__<tool>` when every provider accepts that and it is free; otherwise it
is cleaned, cut, and told apart by a digest of the identity, so that it is the same in every run.
"""

from __future__ import annotations

import re
from collections.abc import Container

from indusagi.core.hashing import content_hash
from indusagi.interop.protocol_bridge.contract import RemoteToolRef, qualify_tool_name

NAME_LENGTH = 64
_ACCEPTED = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_LENGTH}}}")
_REFUSED = re.compile(r"[^A-Za-z0-9_-]+")
_DIGEST_LENGTH = 8


def model_name(ref: RemoteToolRef, taken: Container[str] = ()) -> str:
    """Name a tool for a model: accepted by every provider, and none of those taken."""
    qualified = qualify_tool_name(ref)
    if _ACCEPTED.fullmatch(qualified) and qualified not in taken:
        return qualified
    digest = content_hash([ref.server, ref.name])
    length = _DIGEST_LENGTH
    while True:
        stem = _REFUSED.sub("_", qualified)[: NAME_LENGTH - length - 1]
        name = f"{stem}_{digest[:length]}"
        if name not in taken:
            return name
        length += 1
