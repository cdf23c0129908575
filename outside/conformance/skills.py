"""A host that loads skills through `indus serve`, in front of the suite's server.

It lists the skills, reads the `SKILL.md` of each, and then its other files. What the gateway refuses is not loaded, and
neither are the files after it. Where the suite watches for reads ahead of need, it lists only.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.interop import ProtocolFault, StdioServerConfig, create_server_endpoint
from outside.say import complain

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop import ServerEndpointImpl

SCENARIOS = "sep-2640-"
_NO_PREFETCH = "sep-2640-client-no-prefetch"
_STATE = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")


async def load_skills(url: str, scenario: str) -> None:
    """Go through a scenario.

    Raises:
        ProtocolFault: The gateway does not start, or lists nothing.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "servers.json"
        config.write_text(json.dumps({"mcpServers": {"judge": {"type": "http", "url": url}}}), "utf-8")
        words = ("-m", "induscode", "serve", "--profile", "none", "--names", "plain", "--mcp", str(config))
        gateway = StdioServerConfig("gateway", sys.executable, words, env=dict.fromkeys(_STATE, folder), cwd=folder)
        endpoint = create_server_endpoint(gateway)
        try:
            await endpoint.open()
            listed = await endpoint.list_all("skills/list", "skills")
            complain(f"has {listed}")
            for skill in filter(is_json_object, listed):
                if scenario != _NO_PREFETCH:
                    await _load(endpoint, skill)
        finally:
            await endpoint.close()


async def _load(endpoint: ServerEndpointImpl, skill: JsonObject) -> None:
    files = skill.get("resources")
    others = [file["uri"] for file in files if is_json_object(file)] if isinstance(files, list) else []
    for uri in dict.fromkeys([skill["uri"], *others]):
        try:
            complain(f"{uri}: {await endpoint.request('resources/read', {'uri': uri})}")
        except ProtocolFault as fault:
            complain(f"{uri}: {fault}")
            return
