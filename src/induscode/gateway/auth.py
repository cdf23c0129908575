"""The flags of `indus serve --auth`: access tokens of an authorization server instead of the one-user token."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from induscode.gateway.recursion import EVERYWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from indusagi.interop.protocol_bridge.host.auth.settings import ResourceSettings
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings

SECRET_VARIABLE = "INDUS_SERVE_CLIENT_SECRET"
AUTH_FLAGS = {
    "audiences": "--audience",
    "public_url": "--public-url",
    "any_token_type": "--any-token-type",
    "introspect": "--introspect",
    "require_dpop": "--require-dpop",
    "dpop_nonce": "--dpop-nonce",
    "requests_per_principal": "--max-requests-per-principal",
    "rate_per_principal": "--max-rate-per-principal",
}
"""Flags that mean something beside `--auth` only, by the name of their parameter."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


def auth_flags(command: click.Command) -> click.Command:
    """Give a command the flags of access tokens."""
    decorators: tuple[Callable[[click.Command], click.Command], ...] = (
        click.option(
            "--auth",
            metavar="ISSUER",
            help="With --http: accept access tokens of this authorization server (OAuth) instead of the token.",
        ),
        click.option(
            "--audience",
            "audiences",
            multiple=True,
            metavar="NAME",
            help="With --auth: the audience of accepted tokens (repeatable); the public URL by default.",
        ),
        click.option(
            "--public-url",
            metavar="URL",
            help="With --auth: where clients reach the gateway, if that is not the address it listens on.",
        ),
        click.option(
            "--any-token-type",
            is_flag=True,
            help="With --auth: also accept JWTs that are not marked as access tokens (at+jwt).",
        ),
        click.option(
            "--introspect",
            metavar="CLIENT_ID",
            help=f"With --auth: ask the issuer about each token, as this client; its secret is in {SECRET_VARIABLE}.",
        ),
        click.option(
            "--require-dpop", is_flag=True, help="With --auth: refuse tokens that are not bound to a key (DPoP)."
        ),
        click.option("--dpop-nonce", is_flag=True, help="With --auth: refuse DPoP proofs without a nonce of ours."),
        click.option(
            "--max-requests-per-principal",
            "requests_per_principal",
            type=click.IntRange(1),
            metavar="N",
            help="With --auth: the most requests at once of one principal; 256 by default.",
        ),
        click.option(
            "--max-rate-per-principal",
            "rate_per_principal",
            type=click.FloatRange(0, min_open=True),
            metavar="N",
            help="With --auth: the most requests per second of one principal; 200 by default.",
        ),
    )
    for add in reversed(decorators):
        command = add(command)
    return command


def parse_auth(
    context: click.Context, settings: HttpSettings, environ: Mapping[str, str] = os.environ
) -> ResourceSettings | None:
    """Build the settings of access tokens; None without `--auth`.

    Raises:
        click.UsageError: A URL is invalid, or a flag means nothing beside the others.
    """
    params = context.params
    issuer = params["auth"]
    if issuer is None:
        for key, flag in AUTH_FLAGS.items():
            if params[key]:
                raise click.UsageError(f"{flag} means nothing without --auth", context)
        return None
    from indusagi.interop.protocol_bridge.host.auth.settings import IntrospectionClient, ResourceSettings  # noqa: PLC0415 — few serve with it

    if settings.without_token:
        raise click.UsageError("--auth and --no-token exclude each other", context)
    _check_url(context, "--auth", issuer)
    public_url: str | None = params["public_url"]
    if public_url is not None:
        _check_url(context, "--public-url", public_url)
    elif settings.host in EVERYWHERE:
        message = f"--auth on {settings.host} needs --public-url: tokens are issued for the URL that clients use"
        raise click.UsageError(message, context)
    introspection = None
    if params["introspect"] is not None:
        if not environ.get(SECRET_VARIABLE):
            raise click.UsageError(f"--introspect needs the secret of the client in {SECRET_VARIABLE}", context)
        introspection = IntrospectionClient(client_id=params["introspect"], client_secret=environ[SECRET_VARIABLE])
    chosen = {"requests": params["requests_per_principal"], "rate": params["rate_per_principal"]}
    return ResourceSettings(
        issuer=issuer,
        public_url=public_url,
        audiences=params["audiences"],
        accepts_any_type=params["any_token_type"],
        introspection=introspection,
        requires_dpop=params["require_dpop"],
        requires_nonce=params["dpop_nonce"],
        **{name: value for name, value in chosen.items() if value is not None},
    )


def _check_url(context: click.Context, flag: str, url: str) -> None:
    """Refuse what is no URL of a server, and one that is not encrypted (RFC 8414 §2, RFC 9728 §1.2)."""
    try:
        parts = urlsplit(url)
        is_valid = parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, is_valid = urlsplit(""), False
    if not is_valid or parts.scheme not in {"http", "https"} or parts.query or parts.fragment or parts.username:
        raise click.UsageError(f"{flag} {url!r}: write an https URL without query and fragment", context)
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        raise click.UsageError(f"{flag} {url!r}: write https, since http is not encrypted", context)
