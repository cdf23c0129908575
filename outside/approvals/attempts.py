"""The attempts: each case holds a call, attacks its request in many ways, and knows what may take effect."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import anyio
from anyio import to_thread

from induscode.core.consent import build_consent
from induscode.gateway.approvals.store import Approval, ApprovalState, ApprovalStore
from outside.approvals.sites import TOOL, Site, find_request

AT_ONCE = 8
"""Cases at the same time."""


@dataclass
class Score:
    """How many attempts there were, and how many succeeded, by kind."""

    attempts: Counter[str] = field(default_factory=Counter[str])
    accepted: Counter[str] = field(default_factory=Counter[str])
    expected: Counter[str] = field(default_factory=Counter[str])
    """Effects that somebody has really approved, by text."""
    lost: int = 0
    """Approved calls without an effect."""
    _texts: int = 0

    def new_text(self) -> str:
        """Make a text that no other call has."""
        self._texts += 1
        return f"text-{self._texts}"

    def count(self, kind: str, *, accepted: bool) -> None:
        """Count an attempt."""
        self.attempts[kind] += 1
        self.accepted[kind] += accepted

    async def try_answer(self, kind: str, sites: tuple[Site, Site], approval_id: str, digest: str) -> None:
        """Try to approve a request that can't be, as that: at a site, about a call of another one or the same.

        The copy of another node may take an answer until it hears that the call is over. That's an attempt too: what it
        takes effect on counts at the end.
        """
        site, home = sites
        answer = partial(site.store.answer, approval_id, digest, approve=True, by="mallory")
        is_taken = await to_thread.run_sync(answer)
        self.count(kind if site is home else f"{kind}, at another node", accepted=is_taken and site is home)

    async def try_use(self, kind: str, store: ApprovalStore, approval_id: str, digest: str) -> None:
        """Try to spend a yes that isn't there."""
        self.count(kind, accepted=await to_thread.run_sync(store.use, approval_id, digest))


Case: TypeAlias = Callable[[Sequence[Site], random.Random, Score], Awaitable[None]]


async def answer(store: ApprovalStore, approval: Approval, *, approve: bool) -> bool:
    """Answer as the person."""
    said = partial(store.answer, approval.id, approval.digest, approve=approve, by="ada")
    return await to_thread.run_sync(said)


async def reuse(sites: Sequence[Site], rng: random.Random, score: Score) -> None:
    """Approve one call, then try to spend the same yes again: on itself, and on an equal call."""
    home, answering = rng.choice(sites), rng.choice(sites)
    text = score.new_text()
    requests: list[Approval] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(home.call, text)
        requests.append(await find_request(answering, text))
        score.expected[text] += await answer(answering.store, requests[0], approve=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(home.call, text)
        first, again = requests[0], await find_request(answering, text, requests)
        for site in sites:
            await score.try_answer("reuse: approve again", (site, home), first.id, first.digest)
            await score.try_use("reuse: spend again", home.store, first.id, first.digest)
            await score.try_answer("reuse: the old digest for an equal call", (site, home), again.id, first.digest)
            await score.try_answer("reuse: the new digest for the old call", (site, home), first.id, again.digest)
            await score.try_use("reuse: spend the old yes on an equal call", home.store, again.id, first.digest)
        await answer(answering.store, again, approve=False)


async def alter(sites: Sequence[Site], rng: random.Random, score: Score) -> None:
    """Hold two calls, and try to approve one by the other, by guesses, and by changing its row."""
    home, answering = rng.choice(sites), rng.choice(sites)
    texts = score.new_text(), score.new_text()
    async with anyio.create_task_group() as tasks:
        for text in texts:
            tasks.start_soon(home.call, text)
        one, two = [await find_request(answering, text) for text in texts]
        guess = build_consent(f"call of {TOOL}", {"tool": TOOL, "arguments": {"text": texts[0]}}, one.lines).digest
        place = rng.randrange(64)
        flipped = f"{one.digest[:place]}{int(one.digest[place], 16) ^ 1:x}{one.digest[place + 1 :]}"
        for kind, digest in (
            ("the digest of another call", two.digest),
            ("one digit changed", flipped),
            ("cut short", one.digest[:-1]),
            ("longer", f"{one.digest}0"),
            ("in capitals", f"{one.digest.upper()} "),
            ("empty", ""),
            ("a wildcard", "%"),
            ("computed from the arguments", guess),
        ):
            await score.try_answer(f"alter: {kind}", (rng.choice(sites), home), one.id, digest)
            await score.try_use(f"alter: spend, {kind}", home.store, one.id, digest)
        await score.try_use("alter: spend without an answer", home.store, one.id, one.digest)
        await _swap_rows(home.store, one, two)
        score.count("alter: swap the rows in the file", accepted=False)  # its effects count below
        await answer(home.store, two, approve=False)


async def _swap_rows(store: ApprovalStore, one: Approval, two: Approval) -> None:
    """Approve one request in the file under the digest of the other, and wait until the gateway has read that."""
    await to_thread.run_sync(_set_state, store, one.id, two.digest, ApprovalState.APPROVED)
    with anyio.fail_after(60):
        while True:
            found = await to_thread.run_sync(store.find, one.id)
            if found is not None and found.state is not ApprovalState.APPROVED:
                return
            await anyio.sleep(0.01)


def _set_state(store: ApprovalStore, approval_id: str, digest: str, state: ApprovalState) -> None:
    with closing(sqlite3.connect(store.path, timeout=30, isolation_level=None)) as connection:
        change = "UPDATE approvals SET digest = ?, state = ?, answered_by = 'mallory' WHERE id = ?"
        connection.execute(change, (digest, state.value, approval_id))


async def race(sites: Sequence[Site], rng: random.Random, score: Score) -> None:
    """Let many answer one call at once: one answer counts, and a yes among them runs it once."""
    home, text = rng.choice(sites), score.new_text()
    requests: list[Approval] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(home.call, text)
        request = await find_request(home, text)
        requests.append(request)
        answers: list[bool] = []

        async def say() -> None:
            answers.append(await answer(home.store, request, approve=True))

        async with anyio.create_task_group() as racers:
            for _ in range(AT_ONCE):
                racers.start_soon(say)
        score.expected[text] += any(answers)
        for _ in range(sum(not one for one in answers)):
            score.count("race: a second answer", accepted=False)
        for _ in range(sum(answers) - 1):
            score.count("race: a second answer", accepted=True)
    request = requests[0]
    for site in sites:
        await score.try_answer("race: after the call ran", (site, home), request.id, request.digest)
        await score.try_use("race: spend after the call ran", home.store, request.id, request.digest)


async def outlive(sites: Sequence[Site], rng: random.Random, score: Score) -> None:
    """Let a call expire, or cancel it, and try to approve it afterwards."""
    home, text, is_cancelled = rng.choice(sites), score.new_text(), rng.random() < 0.5
    requests: list[Approval] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(home.call, text)
        requests.append(await find_request(home, text))
        if is_cancelled:
            tasks.cancel_scope.cancel()
    request = requests[0]
    kind = "a cancelled call" if is_cancelled else "an expired call"
    await _wait_for_end(home.store, request)
    for site in sites:
        for _ in range(3):
            await score.try_answer(f"outlive: approve {kind}", (site, home), request.id, request.digest)
            await score.try_use(f"outlive: spend {kind}", home.store, request.id, request.digest)


async def _wait_for_end(store: ApprovalStore, request: Approval) -> None:
    with anyio.fail_after(60):
        while True:
            found = await to_thread.run_sync(store.find, request.id)
            if found is None or not found.is_waiting():
                return
            await anyio.sleep(0.01)


async def attack(open_wide: Sequence[Site], open_briefly: Sequence[Site], count: int, seed: int) -> Score:
    """Make `count` attempts or more: with calls that wait long, and with calls that expire."""
    rng, score = random.Random(seed), Score()
    cases: Sequence[tuple[Case, Sequence[Site]]] = (
        (reuse, open_wide), (alter, open_wide), (race, open_wide), (outlive, open_briefly),
    )  # fmt: skip
    while sum(score.attempts.values()) < count:
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                case, sites = rng.choice(cases)
                tasks.start_soon(case, sites, rng, score)
    effects = Counter([*await open_wide[0].list_effects(), *await open_briefly[0].list_effects()])
    score.accepted["effects that nobody approved"] = (effects - score.expected).total()
    score.lost = (score.expected - effects).total()
    return score
