"""What may be loaded by what, seen in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.support.scripts import unmeasured

pytestmark = pytest.mark.process

HEAVY = {"mcp", "mcp_types", "pydantic", "httpx", "httpx2", "rich", "jsonschema", "ulid"}
LOOP = {"asyncio", "anyio"}


def loaded_by(code: str) -> set[str]:
    """Run code in a fresh interpreter and name the top-level packages it has loaded."""
    script = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, env=unmeasured()
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def run_cli(*arguments: str) -> str:
    call = "from induscode.__main__ import main; assert main() == 0"
    return f"import sys; sys.argv = ['indus', *{list(arguments)!r}]\n{call}"


def test_the_version_loads_nothing() -> None:
    assert loaded_by(run_cli("--version")) & (HEAVY | LOOP | {"click", "dataclasses"}) == set()


def test_help_loads_the_command_line_and_no_more() -> None:
    assert loaded_by(run_cli("--help")) & (HEAVY | LOOP) == set()


@pytest.mark.parametrize("module", ["indusagi.core", "indusagi.runtime"])
def test_the_vocabulary_loads_no_event_loop(module: str) -> None:
    assert loaded_by(f"import {module}") & (HEAVY | LOOP) == set()


def test_the_kernel_loads_nothing_heavy() -> None:
    assert loaded_by("import indusagi.capabilities") & HEAVY == set()


def test_the_bridge_loads_nothing_heavy_until_it_connects_by_http() -> None:
    assert loaded_by("import indusagi.interop") & HEAVY == set()


def test_the_framework_does_not_load_the_product() -> None:
    code = "import indusagi.core, indusagi.runtime, indusagi.capabilities, indusagi.interop"
    assert loaded_by(code) & {"induscode", "click"} == set()


def test_the_first_call_does_not_load_the_validator_in_the_event_loop() -> None:
    code = """
import asyncio, sys, threading
from indusagi.capabilities import ToolSpec, define_tool, make_local_context

async def run(arguments, ctx):
    return "done"

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "jsonschema":
            found.append(threading.current_thread() is threading.main_thread())

found = []
sys.meta_path.insert(0, Watch())
tool = define_tool(ToolSpec("probe", "", {"type": "object"}, run))
asyncio.run(tool.run({}, make_local_context("/")))
assert found == [False], found
"""
    assert "jsonschema" in loaded_by(code)


def test_a_list_of_tools_loads_neither_what_they_do_nor_what_starts_servers() -> None:
    code = """
import sys
import induscode.boot.catalog, induscode.deck.mcp.store.pins
from induscode.deck.catalog import capability_cards
from induscode.deck.contract import DeckContext
assert len([card.build(DeckContext("/")) for card in capability_cards()]) > 12
unwanted = ("indusagi.capabilities.tools.change", "indusagi.capabilities.web", "indusagi.interop.protocol_bridge.fleet")
loaded = [name for name in sys.modules if name.startswith(unwanted)]
assert not loaded, loaded
"""
    assert loaded_by(code) & HEAVY == set()


def test_a_gateway_loads_no_part_that_only_some_runs_need() -> None:
    code = """
import sys
import induscode.gateway.run, induscode.deck.mcp.store.fallback, induscode.gateway.page.site
import indusagi.interop.protocol_bridge.host.http.server
unwanted = (
    "indusagi.interop.protocol_bridge.host.http.resource_access",
    "induscode.gateway.page.source.",
    "induscode.search.cards",
    "induscode.search.index",
    "induscode.permissions.shell",
    "induscode.gateway.page.views.",
)
loaded = [name for name in sys.modules if f"{name}.".startswith(unwanted)]
assert not loaded, loaded
"""
    assert loaded_by(code) & (HEAVY | {"difflib", "email", "gzip", "html", "tempfile"}) == set()
