"""A secret scanner: calls whose arguments hold a key or token are denied, and results are redacted.

The patterns are those of well-known formats; a secret in another format passes. The addon is required: if it fails, the
call is refused and an unscanned result is withheld.
"""

import re

from indusagi.core import JsonValue
from indusagi.runtime import ToolResult
from induscode.addons import Addon, AddonContext, Deny, InterceptedCall, Interceptor, annotate, replace_texts

SECRETS = {
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    "AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
    "Slack token": r"\bxox[abposr]-[A-Za-z0-9-]{10,}",
    "API key": r"\bsk-[A-Za-z0-9_-]{20,}",
    "JSON Web Token": r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
}
PATTERNS = {kind: re.compile(pattern) for kind, pattern in SECRETS.items()}


def find_secret(value: JsonValue) -> str | None:
    """Find the kind of the first secret in a JSON value, keys included."""
    if isinstance(value, str):
        return next((kind for kind, pattern in PATTERNS.items() if pattern.search(value)), None)
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return next(filter(None, map(find_secret, parts)), None)


class SecretScanner(Interceptor):
    """Looks for secrets on the way in and on the way out."""

    def before(self, call: InterceptedCall, /) -> Deny | None:
        """Deny a call with a secret; the reason names its kind only."""
        kind = find_secret(call.arguments)
        return None if kind is None else Deny(f"its arguments hold what looks like a {kind}")

    def after(self, _: InterceptedCall, result: ToolResult, /) -> ToolResult | None:
        """Replace each secret of a result, and tell the model so."""
        count = 0

        def redact(text: str) -> str:
            nonlocal count
            for kind, pattern in PATTERNS.items():
                text, replaced = pattern.subn(f"[redacted: {kind}]", text)
                count += replaced
            return text

        redacted = replace_texts(result, redact)
        return annotate(redacted, f"[secrets redacted: {count}]") if count else None


def addon(_: AddonContext) -> Addon:
    """Build the addon."""
    return Addon(interceptors=[SecretScanner()], required=True)
