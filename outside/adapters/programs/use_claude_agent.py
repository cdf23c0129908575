"""The Claude Agent SDK with the Claude Code that it brings, by a server of the MCP SDK in this process."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import os
import tempfile

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, ToolResultBlock, UserMessage, query

from indusagi.adapters.mcp import to_mcp


async def run(box, gate, url):
    """Run a conversation; return the last sentence and whether a result was an error."""
    said, failed = "", False
    with tempfile.TemporaryDirectory() as home:
        quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        options = ClaudeAgentOptions(
            mcp_servers={"deck": {"type": "sdk", "name": "deck", "instance": to_mcp(box, gate=gate)}},
            allowed_tools=["mcp__deck__*"],
            tools=[],
            model="claude-sonnet-4-5",
            setting_sources=[],
            cwd=home,
            env={
                "HOME": home,
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_API_KEY": "none",
                "PATH": os.environ["PATH"],
                **quiet,
            },
        )
        async for message in query(prompt="go", options=options):
            if isinstance(message, UserMessage) and isinstance(message.content, list):
                failed |= any(isinstance(block, ToolResultBlock) and block.is_error for block in message.content)
            if isinstance(message, ResultMessage):
                said = message.result
    return said, failed
