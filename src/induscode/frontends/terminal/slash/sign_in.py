"""`/mcp login` and `/mcp logout`: signing in to a server of the session with the person at the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.interop.auth.contract import AuthFault
from induscode.frontends.terminal.slash import SlashError
from induscode.servers.sign_in.prompts import PersonPrompt
from induscode.servers.sign_in.servers import read_sign_in, sign_in_to_server, sign_out_of_server

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from induscode.frontends.terminal.slash import SlashScreen

DEVICE, PASTE = "--device", "--paste"


async def sign_in_on_screen(screen: SlashScreen, config: ServerConfig, way: str) -> None:
    """Sign in to a server, by a browser unless `way` is one of the others, and say who signed in.

    Raises:
        SlashError: It failed.
    """
    try:
        await sign_in_to_server(config, PersonPrompt(screen, paste=way == PASTE), device=way == DEVICE)
        facts = await read_sign_in(config)
    except AuthFault as fault:
        raise SlashError(f"not signed in: {fault}") from fault
    who = f" as {facts.account}" if facts is not None and facts.account else ""
    screen.show(f"signed in to {config.id!r}{who}")


async def sign_out_on_screen(screen: SlashScreen, config: ServerConfig) -> None:
    """Sign out of a server, and say whether the issuer has confirmed it.

    Raises:
        SlashError: It failed, or there is no sign-in.
    """
    try:
        confirmed = await sign_out_of_server(config)
    except AuthFault as fault:
        raise SlashError(f"not signed out: {fault}") from fault
    if confirmed is None:
        raise SlashError(f"there is no sign-in to {config.id!r}")
    screen.show(f"signed out of {config.id!r}" + ("" if confirmed else "; the issuer has not confirmed it"))
