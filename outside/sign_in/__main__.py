"""`python -m outside.sign_in`: sign in through the real program.

Authorization servers: oidc-provider (npm), one on Authlib, the SDK's. Ways: Chromium on this machine, a pasted
address, another device. Users of a gateway, each with an own sign-in. Then 8 processes on one rotating refresh token,
processes killed in a refresh, and a real Secret Service.
Ends with 0 if all went well, with 1 if something failed, with 2 if nothing could be installed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from tests.support.authlib_server import AuthlibServer
from tests.support.protected_server import protected_site, sign_in_by_http
from tests.support.refresh_race import kill_in_refresh, run_race

from indusagi.interop.auth.contract import ServerAuth
from indusagi.interop.auth.storage import CredentialFiles
from indusagi.interop.protocol_bridge.contract import StreamableHttpServerConfig
from induscode.cli.dialog import Reply
from induscode.servers.sign_in import PersonPrompt, sign_in_to_server
from outside.browser import BrowserFailed, find_chromium, opened_chromium
from outside.install import ROOT, CannotInstall, find_node, node_packages
from outside.say import aligned, complain, markdown, say, write_between
from outside.sign_in.keyrings import check_secret_service
from outside.sign_in.program import Program, ProgramFailed
from outside.sign_in.sites import authlib_server, oidc_provider_server, sdk_server
from outside.sign_in.users import check_users

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from tests.support.protected_server import Site

    from induscode.cli.dialog import Question
    from outside.browser import Chromium
    from outside.sign_in.program import Way

_HEAD = ("what", "how", "result")
_WIDTHS = (24, 46, 6)
_NAME = "demo"


class _Options(argparse.Namespace):
    only: str
    rounds: int
    calls: int
    kills: int


def main(arguments: Sequence[str]) -> int:
    """Run all parts and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.sign_in", description=__doc__)
    parser.add_argument("--only", default="", help="only parts whose name holds this")
    parser.add_argument("--rounds", type=int, default=200, help="of the race")
    parser.add_argument("--calls", type=int, default=10_000, help="of the users")
    parser.add_argument("--kills", type=int, default=20, help="processes killed in a refresh, of each kind")
    options = parser.parse_args(arguments, _Options())
    rows: list[tuple[str, str, str]] = []
    try:
        anyio.run(_run, options, rows)
    except CannotInstall as exc:
        complain(f"outside.sign_in: {exc}")
        return 2
    if not options.only:
        write_between(ROOT / "docs/evidence/sign-in.md", "sign-in", markdown(_HEAD, rows))
    return 1 if any(row[2].startswith("FAILED") for row in rows) or not rows else 0


async def _run(options: _Options, rows: list[tuple[str, str, str]]) -> None:
    say(aligned(_HEAD, _WIDTHS))

    def add(what: str, how: str, problem: str | None) -> None:
        row = (what, how, "ok" if problem is None else f"FAILED: {problem}")
        rows.append(row)
        say(aligned(row, _WIDTHS))

    if options.only in "browser":
        await _sign_in_everywhere(add)
    if options.only in "users":
        node = find_node()
        if node is None:
            raise CannotInstall("node is missing")
        packages = await to_thread.run_sync(node_packages, node, "sign_in")
        await check_users(node, packages, options.calls, add)
    if options.only in "race":
        await _race(options.rounds, add)
    if options.only in "kill":
        await _kill(options.kills, add)
    if options.only in "keyring":
        add("Secret Service", "gnome-keyring, dbus; then every fallback", await check_secret_service())


# -- authorization servers and ways -----------------------------------------------------------


async def _sign_in_everywhere(add: Callable[[str, str, str | None], None]) -> None:
    program, node = find_chromium(), find_node()
    if program is None or node is None:
        raise CannotInstall("Chromium (Debian: apt install chromium) or node is missing")
    packages = await to_thread.run_sync(node_packages, node, "sign_in")
    sites: dict[str, Callable[[], AbstractAsyncContextManager[str]]] = {
        "oidc-provider": lambda: oidc_provider_server(node, packages),
        "Authlib": authlib_server,
        "MCP SDK": sdk_server,
    }
    with opened_chromium(program) as browser:
        for name, open_site in sites.items():
            ways: tuple[Way, ...] = ("browser", "paste") if name == "MCP SDK" else ("browser", "paste", "device")
            async with open_site() as url:
                for way in ways:
                    how = {"browser": "Chromium", "paste": "pasted address", "device": "code on another device"}[way]
                    problem = await to_thread.run_sync(_sign_in_once, url, way, browser)
                    add(name, f"{how}; restart; call; sign-out", problem)


def _sign_in_once(url: str, way: Way, browser: Chromium) -> str | None:
    """Add a server, sign in, call it from other processes, and sign out; return the problem."""
    with tempfile.TemporaryDirectory() as home:
        indus = Program(home)
        try:
            # More time than a server needs: the machine may be busy with the browser.
            indus.run("mcp", "add", _NAME, url, "--startup-timeout", "60")
            indus.sign_in(_NAME, way, browser)
            for _ in range(2):
                answer = indus.run("call", f"{_NAME}__whoami")
                if "@example.org" not in answer:
                    return f"the server answered {answer!r}"
            if indus.read_state(_NAME)["state"] != "signed in":
                return f"indus mcp auth tells {indus.read_state(_NAME)}"
            indus.run("mcp", "logout", _NAME)
            if indus.read_state(_NAME)["state"] != "not signed in":
                return "it is still signed in after the sign-out"
        except (ProgramFailed, BrowserFailed) as exc:
            return " ".join(str(exc).split())
    return None


# -- processes --------------------------------------------------------------------------------


class _Pasting:
    """A dialog whose person signs in by HTTP, and pastes the address."""

    def show(self, text: str, /) -> None:
        """Show nothing."""

    async def ask(self, question: Question, /) -> Reply:
        """Sign in, and answer with the address."""
        return Reply(text=await sign_in_by_http(question.lines[0]))


async def _sign_in(site: Site) -> None:
    config = StreamableHttpServerConfig(_NAME, site.server.url, auth=ServerAuth(store=CredentialFiles()))
    await sign_in_to_server(config, PersonPrompt(_Pasting(), paste=True))


async def _race(rounds: int, add: Callable[[str, str, str | None], None]) -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_STATE_HOME"] = home
        async with protected_site() as site:
            await _sign_in(site)
            began = time.monotonic()
            report = await run_race(site, 8, rounds)
            took_s = time.monotonic() - began
    wrong = [count for count in report.refreshes if count != 1]
    problem = None
    if wrong or report.faults or site.issuer.reuses:
        problem = f"{len(wrong)} rounds with other than one refresh, {len(report.faults)} faults: {report.faults[:1]}"
    how = f"8 processes, {rounds} rounds: {sum(report.refreshes)} refreshes, {site.issuer.reuses} reuses"
    say(f"  ({took_s:.0f} s)")
    add("rotating refresh token", how, problem)


async def _kill(kills: int, add: Callable[[str, str, str | None], None]) -> None:
    for pause, forgives in (("before", False), ("after", True)):
        lost = 0
        with tempfile.TemporaryDirectory() as home:
            os.environ["XDG_STATE_HOME"] = home
            async with protected_site(AuthlibServer(forgives_reuse=forgives)) as site:
                await _sign_in(site)
                for _ in range(kills):
                    await kill_in_refresh(site, pause="before" if pause == "before" else "after")
                    race = await run_race(site, 1, 1)
                    lost += bool(race.faults)
        what = "before the issuer judges it" if pause == "before" else "before its answer arrives, issuer forgives"
        add("kill -9 in a refresh", f"{kills} times {what}", None if not lost else f"{lost} sign-ins lost")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
