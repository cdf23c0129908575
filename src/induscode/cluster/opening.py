"""The options of commands that ask a cluster: its brokers and its key, from flags or settings."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click

from induscode.cli.signals import run_until_signal
from induscode.cli.terminal import print_status

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from induscode.cluster.broker import Broker
    from induscode.cluster.contract import ClusterFault, ClusterSettings
    from induscode.cluster.key import ClusterKey
    from induscode.launch.settings import Settings

_F = TypeVar("_F", bound=Callable[..., object])
_FAILED = 1
CREDENTIALS = "induscode.broker_credentials"
"""Where a command keeps the value of `--broker-credentials`."""
KEY_HELP = "The key of the cluster; by default the setting cluster.key_file, or cluster.key in the state directory."


def broker_option(function: _F) -> _F:
    """Add `--cluster`, the brokers."""
    text = "The NATS brokers; by default those of the setting cluster.brokers."
    return click.option("--cluster", "brokers", metavar="URL,…", help=text)(credentials_option(function))


def credentials_option(function: _F) -> _F:
    """Add `--broker-credentials`, the file with the user and password for the brokers."""
    text = "A file with USER:PASSWORD, a token or NATS credentials; by default the variable INDUS_BROKER_CREDENTIALS."

    def keep(context: click.Context, _: click.Parameter, value: str | None) -> None:
        context.meta[CREDENTIALS] = value

    option = click.option("--broker-credentials", metavar="FILE", help=text, expose_value=False, callback=keep)
    return option(function)


def key_option(function: _F) -> _F:
    """Add `--cluster-key`, the file with the key of the cluster."""
    return click.option("--cluster-key", "key_file", metavar="FILE", help=KEY_HELP)(function)


def add_credentials(context: click.Context, cluster: ClusterSettings, settings: Settings) -> ClusterSettings:
    """Add who this process is for the brokers; a password in an address is used, with a warning.

    Raises:
        click.UsageError: The file can't be used.
    """
    from induscode.cluster.options import PASSWORD_SHOWN, has_password, read_credentials  # noqa: PLC0415 — not for the help
    from induscode.launch.settings import CLUSTER_CREDENTIALS  # noqa: PLC0415 — not for the help

    try:
        credentials = read_credentials(context.meta.get(CREDENTIALS) or settings.get(CLUSTER_CREDENTIALS))
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"--broker-credentials: {exc}", context) from exc
    if has_password(cluster.brokers) and not credentials:
        print_status(PASSWORD_SHOWN)
    return replace(cluster, credentials=credentials)


def read_settings(context: click.Context, brokers: str | None) -> ClusterSettings:
    """Read the brokers and the credentials for them from flags, variables or the settings.

    Raises:
        click.UsageError: There are none, or an address is invalid.
    """
    from induscode.cluster.contract import ClusterSettings  # noqa: PLC0415 — not for the help
    from induscode.cluster.options import parse_brokers  # noqa: PLC0415 — not for the help
    from induscode.launch.options import read_invocation  # noqa: PLC0415 — not for the help
    from induscode.launch.settings import CLUSTER_BROKERS  # noqa: PLC0415 — not for the help

    settings = read_invocation(context).settings
    text = brokers or ",".join(settings.get(CLUSTER_BROKERS))
    if not text:
        raise click.UsageError("which brokers? Use --cluster URL, or the setting cluster.brokers", context)
    try:
        found = ClusterSettings(brokers=parse_brokers(text), node="command")
    except ValueError as exc:
        raise click.UsageError(f"{'--cluster' if brokers else 'the setting cluster.brokers'}: {exc}", context) from exc
    return add_credentials(context, found, settings)


def read_observer_settings(context: click.Context, brokers: str | None, key_file: str | None) -> ClusterSettings:
    """Read the brokers, and the key if this machine has one: without it the brokers alone can be shown.

    Raises:
        click.UsageError: There are no brokers, or the key can't be used.
    """
    from induscode.launch.options import read_invocation  # noqa: PLC0415 — not for the help

    found, settings = read_settings(context, brokers), read_invocation(context).settings
    if key_file is None and not os.path.exists(find_key_file(settings, None)):
        return found
    return replace(found, key=load_key(context, settings, key_file))


def find_key_file(settings: Settings, key_file: str | None) -> str:
    """Return the path of the key file.

    Raises:
        click.UsageError: There is no home directory.
    """
    from induscode.cluster.key import find_key_path  # noqa: PLC0415 — not for the help
    from induscode.launch.settings import CLUSTER_KEY_FILE  # noqa: PLC0415 — not for the help

    try:
        return find_key_path(key_file or settings.get(CLUSTER_KEY_FILE))
    except OSError as exc:
        raise click.UsageError(str(exc)) from exc


def load_key(context: click.Context, settings: Settings, key_file: str | None) -> ClusterKey:
    """Read the key of the cluster.

    Raises:
        click.UsageError: There is none, or it cannot be used.
    """
    from induscode.cluster.key import read_key  # noqa: PLC0415 — not for the help

    path = find_key_file(settings, key_file)
    try:
        return read_key(path)
    except FileNotFoundError as exc:
        remedy = "copy it from the machine that ran indus cluster init, or name it with --cluster-key"
        raise click.UsageError(f"there is no key of the cluster at {path}: {remedy}", context) from exc
    except (OSError, ValueError) as exc:
        raise click.UsageError(f"--cluster-key: {exc}", context) from exc


def read_keyed_settings(context: click.Context, brokers: str | None, key_file: str | None) -> ClusterSettings:
    """Read the brokers and the key.

    Raises:
        click.UsageError: One of them is missing or cannot be used.
    """
    from induscode.launch.options import read_invocation  # noqa: PLC0415 — not for the help

    settings = read_settings(context, brokers)
    return replace(settings, key=load_key(context, read_invocation(context).settings, key_file))


def describe_fault(fault: ClusterFault) -> str:
    """Return what happened, after the state of the brokers if that is the cause; no answer comes with its reasons."""
    from induscode.cluster.health import STATES  # noqa: PLC0415 — not for the help

    if fault.state in {"ready", "missing"}:
        return str(fault)
    reasons = f": {STATES[fault.state].partition(': ')[2]}" if fault.state == "partitioned" else ""
    return f"brokers {fault.state}: {fault}{reasons}"


def run_with_broker(
    settings: ClusterSettings, work: Callable[[Broker], Awaitable[int]], *, checks_key: bool = True
) -> int:
    """Connect, do the work and return its exit code; print why there is no connection."""
    from induscode.cluster.broker import check_key, open_broker  # noqa: PLC0415 — not for the help
    from induscode.cluster.contract import ClusterFault  # noqa: PLC0415 — not for the help

    async def run(_: CancelToken) -> int:
        try:
            async with open_broker(settings) as broker:
                if settings.key is not None and checks_key:
                    await check_key(broker)
                return await work(broker)
        except ClusterFault as fault:
            print_status(describe_fault(fault))
            return _FAILED

    return run_until_signal(run)
