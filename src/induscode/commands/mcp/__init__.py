"""`indus mcp`: the commands about MCP servers, each loaded when it is used."""

from __future__ import annotations

import click

from induscode.commands.support.groups import CommandGroup, Lazy

_ADD = "induscode.commands.mcp.add"
_CHANGE = "induscode.commands.mcp.change"
_LIST = "induscode.commands.mcp.list_servers"
_TRUST = "induscode.commands.mcp.trust"
_PINS = "induscode.commands.mcp.pins"
_DOCTOR = "induscode.commands.mcp.doctor"


@click.command(
    cls=CommandGroup,
    commands={
        "list": Lazy("list the servers, and how each of them is", _LIST, "list_"),
        "get": Lazy("show what is known of one server", _LIST, "get"),
        "add": Lazy("add a server: a URL, or -- COMMAND ARGUMENTS", _ADD, "add"),
        "add-json": Lazy("add a server from a JSON object", _ADD, "add_json"),
        "import": Lazy("copy servers from other programs", "induscode.commands.mcp.import_servers"),
        "remove": Lazy("take a server out of our file", _CHANGE, "remove"),
        "enable": Lazy("switch a server on", _CHANGE, "enable"),
        "disable": Lazy("switch a server off", _CHANGE, "disable"),
        "trust": Lazy("consent to servers that the project brings", _TRUST, "trust"),
        "untrust": Lazy("take that consent back", _TRUST, "untrust"),
        "lock": Lazy("write down the project's tools, or compare them", _PINS, "lock"),
        "diff": Lazy("show tools that are not what was approved", _PINS, "diff"),
        "approve": Lazy("approve tools as they are now", _PINS, "approve"),
        "doctor": Lazy("examine servers, and say what to do", _DOCTOR, "doctor"),
        "logs": Lazy("show what went wrong with a server", _DOCTOR, "logs"),
    },
    default="list",
)
def command() -> None:
    """Configure, trust and examine MCP servers. Without a command: list."""
