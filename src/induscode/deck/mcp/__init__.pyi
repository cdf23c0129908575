"""The public names of `induscode.deck.mcp`; `__init__.py` loads each from the module named here."""

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
