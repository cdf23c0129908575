"""`indus mcp`: manages MCP servers. Each command loads on use."""

from __future__ import annotations

import click

from induscode.commands.groups import CommandGroup, LazyCommand

_CONFIGURE = "induscode.commands.mcp.configure"
_LIST = "induscode.commands.mcp.list_servers"
_TRUST = "induscode.commands.mcp.trust"
_DOCTOR = "induscode.commands.mcp.doctor"
_SIGN_IN = "induscode.commands.mcp.sign_in"


@click.command(
    cls=CommandGroup,
    commands={
        "list": LazyCommand("list the servers and their states", f"{_LIST}:list_"),
        "get": LazyCommand("show one server", f"{_LIST}:get"),
        "add": LazyCommand("add a server: a URL, or -- COMMAND ARGUMENTS", f"{_CONFIGURE}:add"),
        "add-json": LazyCommand("add a server from a JSON object", f"{_CONFIGURE}:add_json"),
        "import": LazyCommand("copy servers from other programs", "induscode.commands.mcp.import_servers"),
        "search": LazyCommand("find servers in the MCP registry", f"{_CONFIGURE}:search"),
        "install": LazyCommand("add a server of the MCP registry, after a question", f"{_CONFIGURE}:install"),
        "remove": LazyCommand("remove a server from our file", f"{_CONFIGURE}:remove"),
        "enable": LazyCommand("switch a server on", f"{_CONFIGURE}:enable"),
        "disable": LazyCommand("switch a server off", f"{_CONFIGURE}:disable"),
        "login": LazyCommand("sign in to a server", f"{_SIGN_IN}:login"),
        "logout": LazyCommand("sign out of a server", f"{_SIGN_IN}:logout"),
        "auth": LazyCommand("list the sign-ins: who, scopes, expiry, where stored", f"{_SIGN_IN}:auth"),
        "trust": LazyCommand("consent to servers of the project", f"{_TRUST}:trust"),
        "untrust": LazyCommand("revoke that consent", f"{_TRUST}:untrust"),
        "learn": LazyCommand("learn what a server needs, and write its sandbox", "induscode.commands.mcp.learn:learn"),
        "labels": LazyCommand("show what tools read and send, or say so", "induscode.commands.mcp.labels:labels"),
        "lock": LazyCommand("write the lock file of the project's tools, or check it", f"{_TRUST}:lock"),
        "diff": LazyCommand("show tools that differ from what was approved", f"{_TRUST}:diff"),
        "approve": LazyCommand("approve tools as they are now", f"{_TRUST}:approve"),
        "doctor": LazyCommand("examine servers, and say what to do", f"{_DOCTOR}:doctor"),
        "logs": LazyCommand("show what went wrong with a server", f"{_LIST}:logs"),
    },
    default="list",
)
def command() -> None:
    """Add, trust and check MCP servers. Without a command: list."""
