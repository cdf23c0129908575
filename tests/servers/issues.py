"""A server for the pages: one tool that opens an issue, and one prompt."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from peer import Call, Peer, split, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from peer import Json


def create_issue(call: Call) -> Json:
    """Open a new issue in a repository."""
    return text(f"opened: {call.arguments.get('title', '')}")


def main() -> None:
    _, options = split(sys.argv[1:])
    peer = Peer("github", options)
    peer.add("create_issue", create_issue, {"title": {"type": "string"}})
    peer.capabilities |= {"prompts": {}}
    prompts: list[Json] = [{"name": "triage", "description": "Triage the open issues."}]
    peer.methods |= {"prompts/list": lambda call: peer.page(call, "prompts", prompts)}
    peer.serve()


main()
