"""`indus cluster rotate-key`: replaces the key of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from indusagi.core.text import format_count
from induscode.commands.support.cluster import (
    broker_option,
    find_key_file,
    key_option,
    load_key,
    read_settings,
    run_with_broker,
)
from induscode.commands.support.output import as_json, write_json
from induscode.terminal import print_line

if TYPE_CHECKING:
    from induscode.cluster.broker import Broker


@click.command("rotate-key")
@broker_option
@key_option
@as_json
@click.pass_context
def rotate(context: click.Context, *, brokers: str | None, key_file: str | None, as_json: bool) -> int:
    """Replace the key of the cluster, after it has leaked or from time to time. All nodes have to be stopped.

    Shared servers, rules and approved definitions are sealed again. Ledgers and call records stay as they are: the new
    key file opens them up to their present end. Machines with the old file are refused until they have the new one.
    An attempt that was interrupted is finished by the next one.
    """
    from induscode.cluster.shared.rotation import rotate_key  # noqa: PLC0415 — not for the help
    from induscode.launch.options import read_invocation  # noqa: PLC0415 — not for the help

    settings = read_invocation(context).settings
    path, old = find_key_file(settings, key_file), load_key(context, settings, key_file)

    async def work(broker: Broker) -> int:
        broker.settings = replace(broker.settings, key=old)
        done = await rotate_key(broker, path)
        if as_json:
            write_json({"key_file": path, "entries": done.entries, "left_out": done.left_out})
            return 0
        count = format_count(done.entries, "shared entry", "shared entries")
        print_line(f"the key of the cluster is replaced; {count} sealed again")
        if done.left_out:
            print_line(f"left out: {done.left_out} (consents are shared again by their nodes)")
        print_line(f"copy {path} to every node that serves clients, then start them")
        return 0

    return run_with_broker(read_settings(context, brokers), work)
