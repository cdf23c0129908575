"""The view of sign-ins to servers that each user signs in to: a user's own, and for an operator who has some."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from indusagi.interop.auth.contract import AuthFault
from induscode.gateway.page.html import (
    Html,
    PageError,
    PageView,
    address,
    build_form,
    link_outside,
    show_nothing,
    show_state,
    show_time,
    table,
    tag,
)
from induscode.gateway.sign_in import name_user

if TYPE_CHECKING:
    from induscode.gateway.page.access import PageRequest
    from induscode.gateway.sign_in import UserSignIns
    from induscode.servers.sign_in import SignInFacts

_HEADS = ("Server", "State", "Account", "Lasts", "Actions")


async def show_sign_ins(page: PageRequest) -> PageView:
    """Show the sign-ins of the page's user, after the action of a submitted form."""
    source = page.source.user_sign_ins
    if source is None or not source.list_servers():
        raise PageError("Users sign in to no server here")
    said = await _act(page, source) if page.form else None
    own = await _show_own(page, source) if page.user.user else None
    others = await _show_all(page, source) if page.user.rights.can_act else None
    if own is None and others is None:
        raise PageError("Sign in as yourself to see your sign-ins", 403)
    return PageView("Sign-ins", tag("div", said, own, others), "sign-ins")


async def _show_own(page: PageRequest, source: UserSignIns) -> Html:
    wanted, facts = page.get("server"), await source.read_facts(page.user.user)
    facts = sorted(facts, key=lambda one: one.name != wanted)
    rows = [
        (one.name, show_state(one.state), one.account, one.problem or one.format_expiry(), _build_actions(page, one))
        for one in facts
    ]
    _, principal = name_user(page.user.user)
    text = f"You are {principal}. Tools of these servers are called with your own account there, and nobody else's."
    return tag("section", tag("p", text), table(_HEADS, rows, caption="Your sign-ins"))


def _build_actions(page: PageRequest, facts: SignInFacts) -> Html:
    if not page.user.browser:
        return tag("p", "Open this page in a browser to sign in.")
    target = partial(build_form, page.user, address("/sign-ins"), server=facts.name)
    is_known = facts.state != "not signed in"
    enter = target(button="Sign in again" if is_known else "Sign in", look="main", action="sign-in")
    return tag("div", enter, target(button="Sign out", action="sign-out") if is_known else None, cls="actions")


async def _show_all(page: PageRequest, source: UserSignIns) -> Html:
    """List who is signed in where, without anything about the accounts."""
    target = partial(build_form, page.user, address("/sign-ins"), button="Sign out", action="sign-out")
    rows = [
        (principal, server, show_time(saved_ms), issuer, target(server=server, user=user))
        for user, key, saved_ms in await source.list_all()
        for issuer, principal in [name_user(user)]
        for server in source.find_servers(key)
    ]
    heads = ("Principal", "Server", "Since", "Issuer of the principal", "Actions")
    content = table(heads, rows, caption="Users who are signed in") if rows else show_nothing("No user is signed in.")
    return tag("section", tag("h2", "All users"), content)


async def _act(page: PageRequest, source: UserSignIns) -> Html:
    server, user = page.get("server"), page.form.get("user", page.user.user)
    if user != page.user.user:
        if not (page.user.rights.can_act and page.get("action") == "sign-out"):
            raise PageError("This sign-in is another user's", 403)
        if user not in {known for known, *_ in await source.list_all()}:
            raise PageError("This user is not signed in", 404)
    sign_ins = page.source.browser_sign_ins
    try:
        if page.get("action") == "sign-out":
            confirmed = await source.sign_out(server, user)
            rest = "" if confirmed else ". Its issuer has not confirmed it: look at your account there"
            return tag("p", f"Signed out of {server}{rest}.", role="status", cls="said")
        if page.get("action") != "sign-in" or not page.user.browser or sign_ins is None:
            raise PageError("Sign in from the button of this page", 400)
        target = address("/sign-ins", server=server)
        signing = await sign_ins.start(page.user.browser, target, partial(source.sign_in, server, user))
    except AuthFault as fault:
        return tag("p", str(fault), role="alert", cls="said")
    # A redirect of a form to another site is blocked by our own policy.
    leave = link_outside(f"Continue to the sign-in page of {server}", signing.url)
    return tag("p", leave, role="status", cls="said")
