"""The name a model calls a remote tool by.

Identity is the server's id and the tool's own name, and it is carried, never read back from here.
The model's name is `<server>__<tool>` when every provider accepts that and it is free; otherwise it
is cleaned, cut, and told apart by a digest of the identity, so that it is the same in every run.

Two identities can join to one name: tool `b__c` of server `a`, and tool `c` of server `a__b`. The
name belongs to the server that is configured first among those it can be read as a tool of; tools
of the others that join to it are named with a digest. This depends on the ids of the servers and
their order alone, not on which of them run or what they list.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from indusagi.core.hashing import content_hash
from indusagi.interop.protocol_bridge.contract import QUALIFIER, RemoteToolRef, qualify_tool_name

NAME_LENGTH = 64
_ACCEPTED = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_LENGTH}}}")
_REFUSED = re.compile(r"[^A-Za-z0-9_-]+")
_DIGEST_LENGTH = 8


def model_name(ref: RemoteToolRef, taken: Container[str] = (), servers: Sequence[str] = ()) -> str:
    """Name a tool for a model: accepted by every provider, and none of those taken.

    `servers` are the ids of all servers that are configured, in their order, running or not.
    """
    qualified = qualify_tool_name(ref)
    free = qualified not in taken and not _belongs_to_earlier(ref, servers)
    if free and is_accepted_name(qualified):
        return qualified
    digest = content_hash([ref.server, ref.name])
    length = _DIGEST_LENGTH
    while True:
        stem = _REFUSED.sub("_", qualified)[: NAME_LENGTH - length - 1]
        name = f"{stem}_{digest[:length]}"
        if name not in taken:
            return name
        length += 1


def is_accepted_name(name: str) -> bool:
    """Tell whether every provider accepts a name as it is."""
    return _ACCEPTED.fullmatch(name) is not None


def _belongs_to_earlier(ref: RemoteToolRef, servers: Sequence[str]) -> bool:
    """Tell whether the joined name of a tool is also one of a server before its own."""
    qualified = qualify_tool_name(ref)
    before = servers[: servers.index(ref.server)] if ref.server in servers else servers
    return any(qualified.startswith(server + QUALIFIER) for server in before)


def spells_longer_server(ref: RemoteToolRef, servers: Iterable[str]) -> bool:
    """Tell whether the joined name of a tool is also one of a server with a longer id."""
    qualified = qualify_tool_name(ref)
    return any(
        len(server) > len(ref.server) and qualified.startswith(server + QUALIFIER)
        for server in servers
    )
