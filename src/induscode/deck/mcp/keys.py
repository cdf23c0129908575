"""The keys under which remote tools are enrolled, and the names they are made from."""

from __future__ import annotations

import re
from typing import Self

from indusagi.core.hashing import content_hash
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonLike
from indusagi.interop.protocol_bridge.contract import QUALIFIER, RemoteToolRef, qualify_tool_name
from induscode.deck.contract import BridgeFault

_KEY = re.compile(r"bk_(?:[0-9a-f]{32}|[0-9A-HJKMNP-TV-Z]{26})")
"""A digest of 128 bits in hexadecimal digits, or a ULID (https://github.com/ulid/spec)."""


class BridgeKey(str):
    """What makes an enrolment the same one as before: checked text. See the functions below."""

    __slots__ = ()

    def __new__(cls, key: object) -> Self:
        """Check the form of the key.

        Raises:
            BridgeFault: It is not `bk_` and a digest or a ULID.
        """
        if not isinstance(key, str) or _KEY.fullmatch(key) is None:
            makers = "bridge_content_key or bridge_ulid_key"
            raise BridgeFault(f"{key!r} is not a bridge key: make one with {makers}")
        return super().__new__(cls, key)


def bridge_content_key(server: str, tool: str, parameters: JsonLike = None) -> BridgeKey:
    """Make the key of a tool from what it is: its qualified name and its schema.

    The order of the keys in a schema makes no difference, that of its arrays does; no schema is
    not the same as an empty one.
    """
    identity: dict[str, JsonLike] = {"name": qualify_bridge_name(server, tool), "schema": parameters}
    return BridgeKey(f"bk_{content_hash(identity, sort_keys=True)}")


def bridge_identity_key(server: str, tool: str, parameters: JsonLike = None) -> BridgeKey:
    """Make the key of a tool from both parts of its identity, where `bridge_content_key` cannot.

    That one joins the two names, and tools of two servers can join to one name.
    """
    identity: dict[str, JsonLike] = {"server": server, "tool": tool, "schema": parameters}
    return BridgeKey(f"bk_{content_hash(identity, sort_keys=True)}")


def bridge_ulid_key() -> BridgeKey:
    """Make a key that no other enrolment has; keys made later sort later."""
    return BridgeKey(f"bk_{new_ulid()}")


def qualify_bridge_name(server: str, tool: str) -> str:
    """Join the two names of a remote tool."""
    return qualify_tool_name(RemoteToolRef(server, tool))


def server_of_qualified(name: str) -> str:
    """Give what stands before the first qualifier; nothing if there is none, or it leads."""
    at = name.find(QUALIFIER)
    return name[:at] if at > 0 else ""


def unqualified_tool(name: str) -> str:
    """Give what stands after the first qualifier; the name itself if it has no server."""
    server = server_of_qualified(name)
    return name[len(server) + len(QUALIFIER) :] if server else name
