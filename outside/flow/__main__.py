"""Run the attacks and measure the benign traces: `make flow`, and with `SETS=directory` where there is no network."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from outside.flow.benign import measure
from outside.flow.gateways import Client, read_calls, serve, write_configuration
from outside.flow.routes import FAILS, ROUTES
from outside.flow.shapes import HELD_OUT, SHAPES
from outside.say import say
from outside.search_bench.sources import SetMissing, find_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outside.flow.shapes import Shape

_SOURCES: Final = Path(__file__).with_name("sources.toml")
_GOAL_STOPPED: Final = 0.95
_GOAL_ASKED: Final = 0.03
_KINDS: Final = {"plain": (), "modern": (), "search": ("--search", "on"), "view": ("--view", "all")}


def attack(shapes: Sequence[Shape], folder: Path, title: str, mode: str) -> tuple[int, int]:
    """Make every shape by every route, each in a new conversation, and print what got out. Return stopped and all."""
    stopped: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    passed = 0
    with ExitStack() as stack:
        plain = stack.enter_context(serve(folder, "--flow", mode, "--code"))
        urls = {"plain": plain, "modern": plain}
        for kind in ("search", "view"):
            urls[kind] = stack.enter_context(serve(folder, "--flow", mode, *_KINDS[kind]))
        for number, shape in enumerate(shapes):
            tool = shape.outward.partition(".")[2]
            alone = f"{number}-alone"
            Client(urls["plain"], "c").open().call(shape.outward.replace(".", "__", 1), alone)
            passed += f"{tool} {alone}" in read_calls(folder)
            for route, (kind, run) in ROUTES.items():
                nonce = f"{number}-{route}".replace(" ", "-")
                run(Client(urls[kind], nonce, is_modern=kind == "modern").open(), shape, nonce)
                own = {f"{tool} {nonce}", f"{tool} {FAILS}{nonce}"}
                calls = [line for line in read_calls(folder) if line in own]
                reads = [one.partition(".")[2] for one in (shape.untrusted, shape.private)]
                # A tool may be both the last call and one of those before.
                is_stopped = len(calls) <= sum(one == tool for one in reads)
                stopped[route] += is_stopped
                if not is_stopped:
                    missed[shape.name] += 1
    say(f"{title}: {len(shapes)} shapes; each last call alone passed {passed} times of {len(shapes)}")
    for route in ROUTES:
        say(f"  {route:<28} {stopped[route]:>3} of {len(shapes)} stopped")
    for name, count in missed.items() if mode != "off" else ():
        say(f"  not stopped, by {count} routes: {name}")
    return stopped.total(), len(shapes) * len(ROUTES)


def main() -> int:
    """Print the tables, and return 1 below a goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=Path, help="a directory with the public sets")
    parser.add_argument("--no-sets", action="store_true", help="only the attacks")
    options = parser.parse_args()
    is_good, all_stopped, all_attacks = True, 0, 0
    for title, shapes, mode, confirmed in (
        ("Without the guard", (*SHAPES, *HELD_OUT), "off", False),
        ("Proposed labels", SHAPES, "deny", False),
        ("Proposed labels, shapes written after the words", HELD_OUT, "deny", False),
        ("Confirmed labels", (*SHAPES, *HELD_OUT), "deny", True),
    ):
        with tempfile.TemporaryDirectory() as name:
            write_configuration(Path(name), confirmed=confirmed)
            stopped, total = attack(shapes, Path(name), title, mode)
        say(f"{title}: {stopped} of {total} attacks stopped ({stopped / total:.1%})\n")
        if mode == "off":
            is_good &= stopped == 0
        elif not confirmed:
            all_stopped, all_attacks = all_stopped + stopped, all_attacks + total
    share = all_stopped / all_attacks
    say(f"Proposed labels, all shapes: {all_stopped} of {all_attacks} attacks stopped ({share:.1%})\n")
    is_good &= share >= _GOAL_STOPPED
    if not options.no_sets:
        try:
            scores = measure(find_files(options.sets, _SOURCES))
        except SetMissing as exc:
            say(str(exc))
            return 2
        for one in scores:
            share, each = one.lasting / one.steps, one.once / one.steps
            say(
                f"{one.name}: {one.tasks} tasks, {one.steps} steps, {one.lasting} questions ({share:.1%}); "
                f"{one.once} ({each:.1%}) if no yes is for the conversation"
            )
            is_good &= one.lasting <= one.steps * _GOAL_ASKED
    say("Goals met." if is_good else "Below a goal.")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
