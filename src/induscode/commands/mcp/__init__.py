"""`indus mcp`: manages MCP servers. Each command loads on use."""

from __future__ import annotations

import click

from induscode.commands.groups import CommandGroup, LazyCommand

_CONFIGURE = "induscode.commands.mcp.configure"
_LIST = "induscode.commands.mcp.list_servers"
_TRUST = "induscode.commands.mcp.trust"
_DOCTOR = "induscode.commands.mcp.doctor"
_REGISTRY = "induscode.commands.mcp.registry"
_SIGN_IN = "induscode.commands.mcp.sign_in"


@click.command(
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the servers and their states", _LIST, "list_"),
        "get": LazyCommand("show one server", _LIST, "get"),
        "add": LazyCommand("add a server: a URL, or -- COMMAND ARGUMENTS", _CONFIGURE, "add"),
        "add-json": LazyCommand("add a server from a JSON object", _CONFIGURE, "add_json"),
        "import": LazyCommand("copy servers from other programs", "induscode.commands.mcp.import_servers"),
        "search": LazyCommand("find servers in the MCP registry", _REGISTRY, "search"),
        "install": LazyCommand("add a server of the MCP registry, after a question", _REGISTRY, "install"),
        "remove": LazyCommand("remove a server from our file", _CONFIGURE, "remove"),
        "enable": LazyCommand("switch a server on", _CONFIGURE, "enable"),
        "disable": LazyCommand("switch a server off", _CONFIGURE, "disable"),
        "login": LazyCommand("sign in to a server", _SIGN_IN, "login"),
        "logout": LazyCommand("sign out of a server", _SIGN_IN, "logout"),
        "auth": LazyCommand("list the sign-ins: who, scopes, expiry, where stored", _SIGN_IN, "auth"),
        "trust": LazyCommand("consent to servers of the project", _TRUST, "trust"),
        "untrust": LazyCommand("revoke that consent", _TRUST, "untrust"),
        "lock": LazyCommand("write the lock file of the project's tools, or check it", _TRUST, "lock"),
        "diff": LazyCommand("show tools that differ from what was approved", _TRUST, "diff"),
        "approve": LazyCommand("approve tools as they are now", _TRUST, "approve"),
        "doctor": LazyCommand("examine servers, and say what to do", _DOCTOR, "doctor"),
        "logs": LazyCommand("show what went wrong with a server", _DOCTOR, "logs"),
    },
    default="list",
)
def command() -> None:
    """Add, trust and check MCP servers. Without a command: list."""
