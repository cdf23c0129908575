"""Optional parts of the distribution: checks for the extra `agent`."""

from __future__ import annotations

from importlib.util import find_spec

from indusagi import DISTRIBUTION
from indusagi.core.faults import CoreError

_AGENT_PACKAGES = ("pydantic_ai", "anthropic", "prompt_toolkit")


class MissingExtraError(CoreError):
    """A command needs an extra that isn't installed."""


def find_missing_agent() -> str | None:
    """Return what the extra `agent` lacks and how to install it, or `None` if it's complete. Imports nothing."""
    missing = [name for name in _AGENT_PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    extra = f"'{DISTRIBUTION}[agent]'"
    return (
        f"the agent is not installed (no {', '.join(missing)}): pip install {extra}, or run it once: "
        f"uvx --from {extra} indus. Everything else works without it: indus serve, mcp, call, tools"
    )


def require_agent() -> None:
    """Raise `MissingExtraError` unless the extra `agent` is installed."""
    if message := find_missing_agent():
        raise MissingExtraError(message)
