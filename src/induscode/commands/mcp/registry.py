"""`indus mcp search` and `indus mcp install`: find and add servers from an MCP registry.

Nothing from an entry runs until the user has seen the command, the package, its version and our verification of it, and
has agreed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

import click

from induscode.cli.listing import Listing
from induscode.cli.output import as_json, ask_consent, digest_option
from induscode.cli.signals import run_for_result
from induscode.cli.terminal import print_status
from induscode.commands.mcp.configure import add_server, no_check
from induscode.launch.options import flags, read_invocation
from induscode.launch.settings import REGISTRY_URL
from induscode.servers.plan import scope_option
from induscode.servers.registry import RegistryClient, build_installation

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.servers.config.rows import Scope


@flags("--cwd")
@click.command("search")
@click.argument("words", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, metavar="N", help="At most N.")
@as_json
@click.pass_context
def search(context: click.Context, words: tuple[str, ...], *, limit: int, as_json: bool, **_: object) -> int:
    """Find servers in the registry that have one of WORDS in their names, and all of them in names or descriptions.

    Registries only search names: a word that isn't in any name finds nothing by itself.
    """
    url = read_invocation(context).settings.get(REGISTRY_URL)
    found = run_for_result(lambda _: RegistryClient(url).search(words, limit))
    rows: list[JsonObject] = [
        {"name": one.name, "version": one.version, "kinds": [*one.kinds], "description": one.description}
        for one in found
    ]
    return Listing(
        "servers",
        rows,
        ("NAME", "VERSION", "KINDS", "DESCRIPTION"),
        lambda row: [", ".join(map(str, one)) if isinstance(one, list) else one for one in row.values()],
        before={"registry": url},
        empty=f"No server of {url} matches.",
    ).show(as_json=as_json)


@flags("--cwd")
@click.command("install")
@click.argument("name")
@click.option("--version", default="latest", show_default=True, metavar="VERSION", help="The version of the server.")
@click.option("--kind", type=click.Choice(("npm", "pypi", "oci", "remote")), help="Which of its packages.")
@click.option("--as", "local", metavar="NAME", help="The name it gets here; the last part of its name by default.")
@click.option("-e", "--set", "values", multiple=True, metavar="NAME=VALUE", help="A value that it takes.")
@click.option("--yes", is_flag=True, help="Agree without a question.")
@digest_option
@click.option("--replace", is_flag=True, help="Replace a server of this name.")
@scope_option
@no_check
@click.pass_context
def install(
    context: click.Context,
    name: str,
    *,
    version: str,
    kind: str | None,
    local: str | None,
    values: tuple[str, ...],
    yes: bool,
    digests: tuple[str, ...],
    replace: bool,
    scope: str | None,
    no_check: bool,
    **_: object,
) -> int:
    """Add the server NAME of the registry, such as io.github.owner/server, after a question.

    Pins the exact version. The server reads the values it needs from variables when it starts. As with every server,
    its tools are pinned when it first lists them.
    """
    given: dict[str, str] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key or not equals:
            raise click.UsageError(f"--set {value!r}: write NAME=VALUE", context)
        given[key] = text
    url = read_invocation(context).settings.get(REGISTRY_URL)
    server = run_for_result(lambda _: RegistryClient(url).read_server(name, version))
    made = build_installation(server, kind, given)
    own = local or re.sub(r"[^A-Za-z0-9_-]+", "-", name.rpartition("/")[2]).strip("-")
    try:
        if not ask_consent(made.describe(server, url, own), f"Add it as {own!r}?", yes=yes, digests=digests):
            print_status("nothing was added")
            return 1
    except click.UsageError as exc:
        print_status(f"nothing was added. {exc.message}")
        return 1
    where = cast("Scope", scope or "user")
    return add_server(context, own, made.fields, where, replace=replace, check=not no_check and not made.needed)
