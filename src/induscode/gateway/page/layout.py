"""The frame of every page: head, navigation, content; and the page for signing in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi import __version__
from induscode.gateway.page.html import Html, tag
from induscode.gateway.page.parts import PREFIX, address, shorten_path

if TYPE_CHECKING:
    from induscode.gateway.page.access import PageUser
    from induscode.gateway.page.contract import PageView

_SECTIONS = {
    "servers": ("", "Servers"),
    "tools": ("/tools", "Tools"),
    "resources": ("/resources", "Resources"),
    "prompts": ("/prompts", "Prompts"),
    "drift": ("/drift", "Drift"),
    "calls": ("/calls", "Calls"),
    "timeline": ("/timeline", "Timeline"),
    "sessions": ("/sessions", "Sessions"),
    "cluster": ("/cluster", "Cluster"),
}


def _build_document(title: str, *body: Html) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · indus"),
        tag("link", rel="icon", href=address("/icon.svg")),
        tag("link", rel="stylesheet", href=address("/style.css", v=__version__)),
        tag("script", src=address("/page.js", v=__version__), defer=True),
    )
    return "<!doctype html>" + tag("html", head, tag("body", body), lang="en")


def build_page(view: PageView, user: PageUser, cwd: str, waiting: int, *, has_cluster: bool = False) -> str:
    """Build the document of a view; `waiting` definitions wait for a decision."""
    links: list[Html] = []
    for section, (path, name) in _SECTIONS.items():
        if section == "cluster" and not has_cluster:
            continue
        # Its element is there in any case: the script replaces it.
        badge = tag("span", str(waiting or ""), id="waiting", cls="badge") if section == "drift" else None
        current = "page" if section == view.section else None
        links.append(tag("a", name, badge, href=address(path), aria_current=current))
    sign_out = tag(
        "form",
        tag("input", type_="hidden", name="form_key", value=user.form_key),
        tag("button", "Sign out", type_="submit", cls="plain"),
        method="post",
        action=address("/sign-out"),
    )
    brand = tag("a", "indus", href=PREFIX, cls="brand")
    rights = None if user.rights.can_act else tag("span", "read-only", cls="badge note")
    return _build_document(
        view.title,
        tag("a", "Skip to the content", href="#main", cls="skip"),
        tag("header", brand, rights, tag("nav", links, aria_label="Views"), sign_out if user.form_key else None),
        tag("main", tag("h1", view.title), view.content, id="main", tabindex=-1),
        tag("footer", f"indus {__version__} · ", tag("code", shorten_path(cwd), title=cwd)),
    )  # fmt: skip


def build_refusal(message: str) -> str:
    """Build the page that says why a request is refused."""
    said = tag("p", f"{message[:1].upper()}{message[1:]}.", role="alert", cls="said")
    back = tag("p", tag("a", "To the page", href=PREFIX))
    return _build_document("Refused", tag("main", tag("h1", "Refused"), said, back, id="main"))


def build_sign_in(message: str) -> str:
    """Build the page for signing in with the key that the command has printed."""
    form = tag(
        "form",
        tag("label", "Key", for_="key"),
        tag("input", id="key", name="key", type_="password", autocomplete="off", required=True, autofocus=True),
        tag("button", "Sign in", type_="submit", cls="main"),
        method="post",
        action=address("/sign-in"),
        cls="entry",
    )
    said = tag("p", message, role="alert", cls="said") if message else None
    about = tag("p", "Open the address that the command has printed, or enter its key or the token of the gateway.")
    return _build_document("Sign in", tag("main", tag("h1", "Sign in"), said, about, form, id="main"))
