"""Home: what needs you, the servers, the clients, and the last hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from induscode.gateway.page.html import PageView, tag
from induscode.gateway.page.views.servers import show_servers

if TYPE_CHECKING:
    from induscode.gateway.page.access import PageRequest


async def show_home(page: PageRequest) -> PageView:
    """Show the home."""
    return PageView("Home", tag("div", (await show_servers(page)).content), "home")
