"""The keys under which remote tools are enrolled, and the names they are made from."""

from __future__ import annotations

from indusagi.core.hashing import content_hash
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonLike
from indusagi.interop.protocol_bridge.contract import QUALIFIER, RemoteToolRef, qualify_tool_name


class BridgeKey(str):
    """What makes an enrolment the same one as before. Made by the functions below."""

    __slots__ = ()


def bridge_content_key(server: str, tool: str, parameters: JsonLike = None) -> BridgeKey:
    """Make the key of a tool from what it is: its qualified name and its schema.

    The order of the keys in a schema makes no difference, that of its arrays does; no schema is
    not the same as an empty one.
    """
    identity: dict[str, JsonLike] = {
        "name": qualify_bridge_name(server, tool),
        "schema": parameters,
    }
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
