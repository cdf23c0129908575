"""Remedies for a server that failed: the cause, and the command that repairs it."""

from __future__ import annotations

import glob
import os
import shlex
from dataclasses import field
from typing import TYPE_CHECKING

import click

from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from induscode.launch.options import list_server_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerConfig

_REASONS = {
    "auth": "it refuses the credentials: check the header in its row, or sign in again: {login}",
    "exited": "it ended by itself: see what it wrote, if anything, and try its command in a shell",
    "frame_too_large": "it sent more than one message may hold",
    "not_found": "install the command, or correct it: {get}",
    "rate_limited": "try again later",
    "redirect": "put the address it redirects to into its row",
    "refused": "nothing listens at its address: start it, or correct the address",
    "sign_in": "sign in: {login}",
    "version": "it uses another version of the protocol: update it",
}
_KINDS = {
    "timeout": "it took too long: give it more time with startup_timeout_sec in its row",
    "spawn_failed": "try its command in a shell",
    "transport": "check that its address is right and can be reached from here",
    "protocol": "its responses are invalid: check whether it is an MCP server",
}
_OWN_ERROR = "this is the server's own error: compare what its documentation requires with its row: {get}"
_NOISE = (
    "its standard output may carry protocol messages only: have it log to standard error; if it is "
    "an HTTP server, add it by its address: indus mcp add -t http {name} URL"
)
# The time limit of a listing is not a key of a row: more time for the start would change nothing.
_NOT_LISTED = "it came up and does not list its tools: see whether it waits for something, such as a login or a network"
_SHOWN_NAMES = 12


@record
class Advice:
    """The remedy of a fault, and further notes."""

    remedy: str
    notes: Sequence[str] = field(default=())


def format_command(*words: str) -> str:
    """Format a command of `indus` for a shell, with the `--mcp` and `--cwd` of this run.

    Without them the command would look for a server in other files than the run did.
    """
    context = click.get_current_context(silent=True)
    return shlex.join(["indus", *words, *([] if context is None else list_server_words(context))])


def format_server_command(verb: str, server: str) -> str:
    """Format the command `indus mcp VERB SERVER` for a shell, with the `--mcp` and `--cwd` of this run."""
    return f"{format_command('mcp', verb)} {shlex.quote(server)}"


def advise(
    name: str, config: ServerConfig, fault: ProtocolFault, environ: Mapping[str, str], *, connected: bool = False
) -> Advice:
    """Choose the remedy of a fault of a start or, once `connected`, of the listing after it."""
    notes: list[str] = []
    words = {"name": shlex.quote(name), **{verb: format_server_command(verb, name) for verb in ("get", "login")}}
    if isinstance(config, StdioServerConfig):
        from indusagi.interop.protocol_bridge.client.start.environment import find_withheld  # noqa: PLC0415 — on a fault

        output = "\n".join((str(fault), *fault.detail.stderr, *fault.detail.stdout))
        names = find_withheld(environ, config.env, output)
        if names:
            more = len(names) - _SHOWN_NAMES
            shown = ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
            notes.append(
                f"set in this shell and not passed on to it: {shown}; if it needs one, name it in "
                'its row: "env_vars": ["NAME"]'
            )
        damage = _find_damage(config, fault, environ)
        if damage is not None:
            return Advice(damage, notes)
    if fault.detail.rpc_code is not None and fault.detail.http_status is None:
        return Advice(_OWN_ERROR.format_map(words), notes)
    if fault.detail.stdout and fault.detail.reason in {None, "exited", "closed", "malformed"}:
        return Advice(_NOISE.format_map(words), notes)
    if connected and fault.kind == "timeout":
        return Advice(_NOT_LISTED, notes)
    remedy = _REASONS.get(fault.detail.reason or "") or _KINDS.get(fault.kind, "see the fault")
    return Advice(remedy.format_map(words), notes)


def _find_damage(config: StdioServerConfig, fault: ProtocolFault, environ: Mapping[str, str]) -> str | None:
    """Recognise the damaged cache of a package manager, and return the command that repairs it."""
    from indusagi.interop.protocol_bridge.client.start.causes import find_cache_damage  # noqa: PLC0415 — on a fault
    from indusagi.interop.protocol_bridge.client.start.package_managers import find_package_manager  # noqa: PLC0415 — on a fault

    manager = find_package_manager(config.command, config.args)
    output = (*fault.detail.stderr, *fault.detail.stdout)
    known = None if manager is None else manager.name
    # The package is the first word after the subcommand that is not an option.
    words = [word for word in config.args if word not in {"run", "tool", "exec", "x", "dlx"}]
    package = next((word for word in words if not word.startswith("-") and "=" not in word), "")
    damage = find_cache_damage(output, known, package.rpartition("@")[0] or package)
    if damage is not None:
        return f"{damage.cause}; mend it: {damage.command}"
    if known in {"npx", "npm"} and fault.kind in {"timeout", "spawn_failed"}:
        # The cache of npm: https://docs.npmjs.com/cli/using-npm/config#cache
        variables = {**environ, **config.env}
        cache = variables.get("npm_config_cache") or variables.get("NPM_CONFIG_CACHE")
        folder = cache or os.path.join(variables.get("HOME", os.path.expanduser("~")), ".npm")
        locks = sorted(glob.glob(os.path.join(glob.escape(folder), "_npx", "*", "concurrency.lock")))
        if locks:
            folders = " ".join(shlex.quote(os.path.dirname(path)) for path in locks)
            return f"npx left a lock behind when it was killed; mend it: rm -rf {folders}"
    return None
