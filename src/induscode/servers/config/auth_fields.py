"""The `auth` object of a server row: how to sign in to the server.

Other programs spell parts of it differently: `oauth` with `clientId` (Claude Code, Gemini, opencode), `auth` with
`CLIENT_ID` (Cursor), `headersHelper` (Claude Code). We convert them all to the fields of `AuthSettings`, with variables
as written, since users consent to their names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

from indusagi.core.json import compact_json, is_json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.auth.contract import AuthMethod, AuthSettings, Grant

_TEXTS: Final = frozenset(
    (
        *("client_id", "client_secret", "private_key", "signing_algorithm", "client_metadata_url", "redirect_uri"),
        *("issuer", "metadata_url", "assertion", "assertion_file"),
    )
)
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "grant": ("authorization_code", "device_code", "client_credentials", "jwt_bearer", "id_jag", "token_exchange"),
    "auth_method": ("none", "client_secret_basic", "client_secret_post", "private_key_jwt"),
}
_FLAGS: Final = frozenset({"dpop", "assume_pkce"})
_LISTS: Final = frozenset({"scopes", "header_command"})
_PROVIDER: Final = ("token_endpoint", "client_id", "client_secret", "id_token")
_OTHER_NAMES: Final = {"auth_server_metadata_url": "metadata_url", "scope": "scopes"}
_IGNORED: Final = frozenset({"type", "enabled"})
_LAST_PORT: Final = 65_535


def normalize_auth(row: JsonObject, remarks: list[str]) -> JsonObject | None:
    """Return a row's sign-in fields, skipping invalid ones with a remark.

    `None`: the row doesn't say; an empty object: it doesn't want a sign-in.
    """
    given = row.get("auth", row.get("oauth"))
    helper = row.get("headersHelper", row.get("headers_helper"))
    if given is False or (is_json_object(given) and (given.get("type") == "none" or given.get("enabled") is False)):
        return {}
    fields: JsonObject = {}
    if given is not None and not is_json_object(given):
        remarks.append("its auth is not an object, and was left out")
    elif given is not None:
        if given.get("type") in ("token-exchange", "token_exchange"):
            fields["grant"] = "token_exchange"
        for key, value in given.items():
            # `clientId` and `CLIENT_ID` are `client_id`.
            name = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", key).lower()
            name = _OTHER_NAMES.get(name, name)
            if name not in _IGNORED and value is not None and not _take(fields, name, value):
                remarks.append(f"{key} of its auth is unknown or invalid, and was left out")
    if helper is not None and not _take(fields, "header_command", helper):
        remarks.append("its headersHelper is not text, and was left out")
    port = fields.get("callback_port")
    if "oauth" in row and port is not None and "redirect_uri" not in fields:
        # The redirect Claude Code users have registered for their client.
        fields["redirect_uri"] = f"http://localhost:{port}/callback"
    return fields or None


def _take(fields: JsonObject, name: str, value: JsonValue) -> bool:
    """Add a field if it's valid, and tell whether it was."""
    taken: JsonValue = None
    if name in _LISTS:
        taken = _parse_list(name, value)
    elif name == "callback_port":
        taken = value if isinstance(value, int) and 0 < value <= _LAST_PORT else None
    elif name in _FLAGS:
        taken = value if isinstance(value, bool) else None
    elif name == "identity_provider" and is_json_object(value):
        is_complete = all(isinstance(value.get(key), str) for key in _PROVIDER if key != "client_secret")
        taken = {key: text for key in _PROVIDER if isinstance(text := value.get(key), str)} if is_complete else None
    elif isinstance(value, str) and (name in _TEXTS or value in _CHOICES.get(name, ())):
        taken = value
    if taken is not None:
        fields[name] = taken
    return taken is not None


def _parse_list(name: str, value: JsonValue) -> JsonValue:
    if isinstance(value, str) and value.strip():
        # Claude Code runs its helper in a shell; OAuth scopes are a single string (RFC 6749 §3.3).
        return ["sh", "-c", value] if name == "header_command" else [*value.split()]
    if isinstance(value, list) and value and all(isinstance(member, str) for member in value):
        return value
    return None


def iter_auth_texts(auth: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield every string in the object with its place."""
    for name, value in auth.items():
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, list):
            yield from ((name, str(member)) for member in value)
        elif is_json_object(value):
            yield from ((f"{name}.{key}", str(member)) for key, member in value.items())


def format_auth(name: str, value: JsonValue) -> str | None:
    """Format a field for a consent prompt, or return `None` if its value is a secret."""
    if name in {"client_secret", "private_key", "assertion", "identity_provider"}:
        return None
    return value if isinstance(value, str) else compact_json(value)


def build_auth_settings(auth: JsonObject, expand: Callable[[str], str]) -> AuthSettings:
    """Build the sign-in settings, with variables expanded."""
    from indusagi.interop.auth.contract import AuthSettings, IdentityProvider  # noqa: PLC0415 — for such rows alone

    def text(name: str) -> str:
        value = auth.get(name)
        return expand(value) if isinstance(value, str) else ""

    def texts(name: str) -> tuple[str, ...] | None:
        value = auth.get(name)
        return tuple(expand(str(member)) for member in value) if isinstance(value, list) else None

    given, port, dpop = auth.get("identity_provider"), auth.get("callback_port"), auth.get("dpop")
    provider = None
    if is_json_object(given):
        parts = {key: expand(str(value)) for key, value in given.items()}
        provider = IdentityProvider(
            token_endpoint=parts["token_endpoint"],
            client_id=parts["client_id"],
            client_secret=parts.get("client_secret"),
            id_token=parts["id_token"],
        )
    return AuthSettings(
        grant=cast("Grant", text("grant") or "authorization_code"),
        client_id=text("client_id"),
        client_secret=text("client_secret") or None,
        auth_method=cast("AuthMethod | None", text("auth_method") or None),
        private_key=text("private_key") or None,
        signing_algorithm=text("signing_algorithm") or "ES256",
        client_metadata_url=text("client_metadata_url"),
        scopes=texts("scopes"),
        callback_port=port if isinstance(port, int) else None,
        redirect_uri=text("redirect_uri"),
        issuer=text("issuer"),
        metadata_url=text("metadata_url"),
        assume_pkce=auth.get("assume_pkce") is True,
        assertion=text("assertion") or None,
        assertion_file=text("assertion_file"),
        identity_provider=provider,
        dpop=dpop if isinstance(dpop, bool) else None,
        header_command=texts("header_command") or (),
    )
