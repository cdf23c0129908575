"""Speaking to other systems: the MCP bridge."""

from indusagi.interop.protocol_bridge import *
