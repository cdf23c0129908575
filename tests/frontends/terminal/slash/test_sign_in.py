"""`/mcp login` and `/mcp logout` on a terminal."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from tests.support.forked import CONSTANTS
from tests.support.protected_server import site_in_thread
from tests.support.slash import WIDE, wait_for_answer
from tests.support.terminal import open_setup

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

CODE = re.compile(r"enter the code ([A-Z]{4}-[A-Z]{4})")


def test_a_person_signs_in_and_out_in_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONSTANTS, "indusagi.interop.auth.token_endpoint:_LONGEST_POLL_S", 0.05)
    with site_in_thread() as site, open_setup(tmp_path) as setup:
        rows = {"mcpServers": {"demo": {"type": "http", "url": site.server.url}}}
        (setup.cwd / "given.json").write_text(json.dumps(rows), "utf-8")
        with setup.open("--mcp", "given.json", columns=WIDE) as terminal:
            terminal.wait_for_prompt()
            terminal.wait_for("note: server 'demo': it needs a sign-in: /mcp login demo")
            wait_for_answer(terminal, "/mcp list", "Fix: sign in: /mcp login demo")
            assert "  sign in  " in terminal.text
            terminal.enter("/mcp login demo --device")
            terminal.wait_for(lambda: CODE.search(terminal.text) is not None)
            code = CODE.search(terminal.text)
            assert code is not None
            site.issuer.approve(code[1])
            terminal.wait_for("signed in to 'demo'")
            terminal.wait_for("✓ demo: 1 tool")
            wait_for_answer(terminal, "/mcp logout demo", "signed out of 'demo'")
            wait_for_answer(terminal, "/mcp logout demo", "there is no sign-in to 'demo'")
            assert terminal.leave() == 0
        assert all(token.is_revoked for token in site.issuer.tokens)
