"""What the servers of `outside.sandboxes` list: each is started once, and its tools are stored below `.outside`."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from indusagi.interop import ProtocolFault, create_server_endpoint
from outside import install
from outside.host import agreeable
from outside.remote import pages
from outside.sandboxes.__main__ import fill_workspace, install_servers
from outside.sandboxes.roster import list_subjects
from outside.sandboxes.visits import Surroundings, build_config
from outside.say import complain, say

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import StdioServerConfig

_DEADLINE_S: Final = 90.0
LISTINGS: Final = install.ROOT / ".outside/review"


def store_listings(folder: Path = LISTINGS) -> None:
    """Store the tools of every server whose file is absent; a server that doesn't start is reported.

    Raises:
        CannotInstall: A server can't be installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
        template = Path(root, "template")
        template.mkdir()
        fill_workspace(template)
        surroundings = Surroundings(Path(root), template)
        with pages(template) as page:
            subjects = list_subjects(install_servers(surroundings.work, page))
            os.environ["HOME"] = str(surroundings.home)
            for subject in subjects:
                path = folder / f"{subject.package.replace('/', '_')}-{subject.version}.json"
                if path.exists():
                    continue
                surroundings.renew()
                try:
                    tools = asyncio.run(_list_tools(build_config(subject.server, surroundings.work)))
                except (ProtocolFault, TimeoutError) as exc:
                    complain(f"{subject.package}: {exc or 'no answer in time'}")
                    continue
                path.write_text(json.dumps({"server": subject.package, "tools": tools}, indent=1), "utf-8")
                say(f"{subject.package}: {len(tools)} tools")


async def _list_tools(config: StdioServerConfig) -> list[object]:
    endpoint = create_server_endpoint(config, handlers=agreeable())
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await endpoint.open()
            return [dict(item.raw) for item in await endpoint.list_items("tool")]
    finally:
        await endpoint.close()
