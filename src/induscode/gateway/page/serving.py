"""Serves a gateway's page: builds the site, opens it for the first browser, and prints its address.

Only the sign-in loads at startup. The page itself pulls in permissions, server sign-ins and stored sessions (2 MB),
which a gateway without a browser doesn't need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from anyio import to_thread

from induscode.cli.output import can_ask_user
from induscode.cli.terminal import print_status

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from induscode.gateway.gateway import Gateway
    from induscode.gateway.options import PageMode, ServeOptions
    from induscode.gateway.page.site import PageSite
    from induscode.gateway.page.source import GatewayPage


def build_site(mode: PageMode) -> PageSite | None:
    """Build the page's site, or return `None` if it's off."""
    if mode == "off":
        return None
    from induscode.gateway.page.access import PageAccess  # noqa: PLC0415 — over HTTP only
    from induscode.gateway.page.site import PageSite  # noqa: PLC0415 — over HTTP only

    return PageSite(PageAccess(), mode)


def open_page(stack: AsyncExitStack, site: PageSite | None, gateway: Gateway) -> None:
    """Show the gateway on its page until `stack` closes, after the last request."""
    if site is None:
        return
    page: GatewayPage | None = None

    async def open_source() -> GatewayPage:
        nonlocal page
        if page is None:
            await to_thread.run_sync(import_module, "induscode.gateway.page.source")  # slow to import
            from induscode.gateway.page.source import GatewayPage  # noqa: PLC0415 — for the first browser

            if page is None:  # another request may have won the race
                page = GatewayPage(gateway)
                stack.push_async_callback(page.aclose)
        return page

    site.open_source = open_source


async def announce_page(site: PageSite, url: str, token: str | None, options: ServeOptions) -> None:
    """Print the page's address, with its key if a user is reading or no token is required."""
    site.access.token = token or ""
    site.access.cookie += f"_{urlsplit(url).port}"
    address = f"{url}{site.prefix}"
    is_open = options.settings is not None and options.settings.without_token
    if can_ask_user() or options.is_ui or is_open:
        address += f"?key={site.access.key}"
        print_status(f"page: {address}")
    else:
        print_status(f"page: {address}" + (", sign in with the token" if token else ""))
    if options.opens_browser:
        from induscode.servers.sign_in import open_browser  # noqa: PLC0415 — for `indus ui`

        if not await to_thread.run_sync(open_browser, address):
            print_status("there is no browser here: open the address of the page in one")
