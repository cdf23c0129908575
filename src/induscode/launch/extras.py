"""Optional parts of the distribution: whether the extra `agent` is installed, and how it is."""

from __future__ import annotations

from importlib.util import find_spec

from indusagi import DISTRIBUTION
from indusagi.core.faults import CoreError

_AGENT_PACKAGES = ("pydantic_ai", "anthropic", "prompt_toolkit")


class MissingExtraError(CoreError):
    """A command needs packages of an extra that is not installed."""


def find_missing_agent() -> str | None:
    """Say what is missing of the extra `agent`, and how to install it; None if it is complete. Nothing is imported."""
    missing = [name for name in _AGENT_PACKAGES if find_spec(name) is None]
    if not missing:
        return None
    extra = f"'{DISTRIBUTION}[agent]'"
    return (
        f"the agent is not installed (no {', '.join(missing)}): pip install {extra}, or run it once: "
        f"uvx --from {extra} indus. Everything else works without it: indus serve, mcp, call, tools"
    )


def require_agent() -> None:
    """Check that the extra `agent` is installed, before a session starts.

    Raises:
        MissingExtraError: It is not.
    """
    message = find_missing_agent()
    if message is not None:
        raise MissingExtraError(message)
