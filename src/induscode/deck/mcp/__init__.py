"""MCP servers in the deck: configuration, consent, tool enrolment and the ledger.

Names load lazily, since reading a configuration needs no event loop.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from induscode.deck.mcp.attach import AttachResult as AttachResult
    from induscode.deck.mcp.attach import attach_bridge_capabilities as attach_bridge_capabilities
    from induscode.deck.mcp.attach import bridge_capability_card as bridge_capability_card
    from induscode.deck.mcp.attach import bridge_config as bridge_config
    from induscode.deck.mcp.attach import bridge_status as bridge_status
    from induscode.deck.mcp.attach import bridge_tool_counts as bridge_tool_counts
    from induscode.deck.mcp.attach import bridge_tool_names as bridge_tool_names
    from induscode.deck.mcp.attach import detach_bridge as detach_bridge
    from induscode.servers.config import discover_mcp_config as discover_mcp_config
    from induscode.servers.config import load_mcp_config as load_mcp_config
    from induscode.servers.config import parse_config_file as parse_config_file
    from induscode.servers.config import server_config_from_row as server_config_from_row

_HOMES = {
    "AttachResult": "induscode.deck.mcp.attach",
    "attach_bridge_capabilities": "induscode.deck.mcp.attach",
    "bridge_capability_card": "induscode.deck.mcp.attach",
    "bridge_config": "induscode.deck.mcp.attach",
    "bridge_status": "induscode.deck.mcp.attach",
    "bridge_tool_counts": "induscode.deck.mcp.attach",
    "bridge_tool_names": "induscode.deck.mcp.attach",
    "detach_bridge": "induscode.deck.mcp.attach",
    "discover_mcp_config": "induscode.servers.config",
    "load_mcp_config": "induscode.servers.config",
    "parse_config_file": "induscode.servers.config",
    "server_config_from_row": "induscode.servers.config",
}
__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll] — loaded by name, below


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
