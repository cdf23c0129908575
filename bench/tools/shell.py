"""The scoreboard's probes of bash and process: what hangs, what is left, memory, what is said."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING

from bench.tools.board import MB, Finding, Item, format_counts, seconds
from bench.tools.subject import TOKEN, TOKEN_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.tools.board import Scene
    from bench.tools.subject import Driver
    from indusagi.core.json import JsonObject

_AT_ONCE_S = 4.0
_STOPPED_S = 6.5
"""The limit of a second, three for a program to put its affairs in order, and some to spare."""
_BATCH_S = 15.0
_GROWTH = 16 * MB
_GONE_S = 2.0
_NAMED = 8
"""How many that hang are named."""

# -- hanging --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Command:
    """A command, its time limit, and by when there must be an answer."""

    text: str
    limit_ms: int = 6_000
    answer_s: float = _AT_ONCE_S
    needs: str | None = None
    """A program without which it says nothing."""


def _endless(text: str) -> _Command:
    return _Command(text, 1_000, _STOPPED_S)


_DAEMON = (
    "python3 -c 'import os,time\nif os.fork(): os._exit(0)\nos.setsid()\n"
    "if os.fork(): os._exit(0)\ntime.sleep(9)'; echo done"
)
_HANGING = (
    _Command("sleep 9 & echo done"),
    _Command("setsid sleep 9 & echo done"),
    _Command("nohup sleep 9 & disown; echo done"),
    _Command("(sleep 9; echo late) & exit 3"),
    _Command("coproc sleep 9; echo done"),
    _Command(_DAEMON, needs="python3"),
    _Command("cat"),
    _Command("read -r answer; echo got $answer"),
    _Command("read -r answer < /dev/tty; echo got"),
    _Command("python3 -c 'input()'", needs="python3"),
    _Command("python3 -c 'import getpass; getpass.getpass()'", needs="python3"),
    _Command("python3", needs="python3"),
    _Command("bash -i"),
    _Command("less long.txt", needs="less"),
    _Command("more long.txt", needs="more"),
    _Command("man bash", needs="man"),
    _Command("cd paged && git log", needs="git"),
    _Command("cd paged && git -c core.pager='cat > /dev/null; cat' diff HEAD~1", needs="git"),
    _Command("cd commit && git commit", needs="git"),
    _Command("cd rebase && git rebase -i HEAD~1", needs="git"),
    _Command("${EDITOR:-cat} long.txt > /dev/null; ${VISUAL:-cat} > /dev/null; ${PAGER:-cat}"),
    _Command("ssh -o ConnectTimeout=2 nobody@127.0.0.1 true", needs="ssh"),
    _endless("trap '' TERM; sleep 9"),
    _endless("trap '' TERM HUP INT; while :; do sleep 1; done"),
    _endless("setsid bash -c \"trap '' TERM; sleep 9\""),
    _endless("kill -STOP $$"),
    _endless("mkfifo pipe; cat pipe"),
    _endless("yes > /dev/null"),
    _endless("tail -f /dev/null | cat"),
)


def hanging(scene: Scene) -> Finding:
    """Run all of them at once, and see which have no answer by when there must be one."""
    commands = [each for each in _HANGING if each.needs is None or shutil.which(each.needs)]
    _stage(scene.folder)
    calls: list[tuple[str, JsonObject]] = [
        ("bash", {"command": each.text, "timeoutMs": each.limit_ms}) for each in commands
    ]
    with scene.driver() as driver:
        batch = driver.calls(calls, together=True, limit_s=_BATCH_S)
    hung = [
        each.text.partition("\n")[0]
        for each, answer in zip(commands, batch.answers, strict=True)
        if answer is None or answer.seconds > each.answer_s
    ]
    text = f"{len(hung)} of {len(commands)}"
    if hung:
        text += ": " + ", ".join(f"`{_format_output(each)}`" for each in hung[:_NAMED])
    if len(hung) > _NAMED:
        text += ", ..."
    return Finding(not hung, text, {"hung": len(hung), "total": len(commands)})


def _format_output(command: str) -> str:
    shown = command.replace("|", "&#124;")
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _stage(folder: Path) -> None:
    """Make a file too long for a screen, and repositories that would open a pager or an editor."""
    (folder / "long.txt").write_text("line\n" * 500, encoding="utf-8")
    for name in ("paged", "commit", "rebase"):
        repository = folder / name
        repository.mkdir()
        _git(repository, "init", "--quiet")
        for number in range(3):
            (repository / "file").write_text(f"{number}\n" * 200, encoding="utf-8")
            _git(repository, "add", "file")
            _git(repository, "commit", "--quiet", "-m", f"change {number}\n\n" + "why\n" * 60)
    (folder / "commit" / "file").write_text("staged\n", encoding="utf-8")
    _git(folder / "commit", "add", "file")


def _git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.invalid", "-c", "commit.gpgsign=false"]
    if shutil.which("git"):
        subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, check=True)


# -- what is left ---------------------------------------------------------------------------


def orphans(scene: Scene) -> Finding:
    """Count the processes that outlive a stop, a time limit, or the session."""
    left = {name: case(scene) for name, case in _ENDS.items()}
    total = sum(left.values())
    text = str(total)
    if total:
        text += f" ({', '.join(f'{name}: {count}' for name, count in left.items() if count)})"
    return Finding(total == 0, text, {"left": total})


def _list_leftovers(driver: Driver) -> int:
    """Count what is left, after the moment that a process needs to be gone."""
    deadline = monotonic() + _GONE_S
    while (left := driver.left()) and monotonic() < deadline:
        sleep(0.05)
    return len(left)


def _after_stop(command: str) -> Callable[[Scene], int]:
    def case(scene: Scene) -> int:
        with scene.driver() as driver:
            started = driver.call("process", {"action": "start", "command": command})
            found = re.search(r"job-\d+", started.text)
            sleep(0.3)
            driver.call("process", {"action": "stop", "id": found[0] if found else "job-1"}, 20)
            return _list_leftovers(driver)

    return case


def _after_limit(scene: Scene) -> int:
    command = "setsid sleep 300 & (trap '' TERM; sleep 300) & sleep 300"
    with scene.driver() as driver:
        # Whoever does not come back is looked at all the same.
        driver.calls([("bash", {"command": command, "timeoutMs": 500})], limit_s=8)
        return _list_leftovers(driver)


def _after_close(scene: Scene) -> int:
    with scene.driver() as driver:
        driver.call("process", {"action": "start", "command": "sleep 300 & sleep 300"})
        driver.calls([("bash", {"command": "sleep 300 > /dev/null 2>&1 &"})], limit_s=8)
        sleep(0.3)
        driver.close_session()
        return _list_leftovers(driver)


_ENDS: dict[str, Callable[[Scene], int]] = {
    "stop": _after_stop("sleep 300 & sleep 300"),
    "stop, own session": _after_stop("setsid sleep 300 & sleep 300"),
    "stop, ignoring SIGTERM": _after_stop("(trap '' TERM; sleep 300) & trap '' TERM; sleep 300"),
    "time limit": _after_limit,
    "end of the session": _after_close,
}

# -- memory and words -----------------------------------------------------------------------


def flood(scene: Scene) -> Finding:
    """Have a command write very much."""
    size = scene.sizes.output_bytes
    command = f"yes 'a line of some sixty characters, as a noisy build prints them' | head -c {size}"
    with scene.driver() as driver:
        driver.call("bash", {"command": "echo warm"})
        arguments: JsonObject = {"command": command, "timeoutMs": 120_000}
        batch = driver.calls([("bash", arguments)], limit_s=150)
    (answer,) = batch.answers
    if answer is None or batch.growth is None:
        return Finding(ok=False, text="did not come back in 150 s")
    text = f"+{batch.growth / MB:.1f} MB in {seconds(answer.seconds)}"
    if answer.error:
        text += ", and an error"
    ok = batch.growth < _GROWTH and not answer.error
    return Finding(ok, text, {"bytes": batch.growth, "seconds": answer.seconds})


def probe_messages(scene: Scene) -> Finding:
    """Check the reports about commands, and how their lines arrive."""
    (scene.folder / "hay.txt").write_text("hay\n", encoding="utf-8")
    with scene.driver() as driver:
        none = driver.call("bash", {"command": "grep needle hay.txt"})
        differ = driver.call("bash", {"command": "echo a > a; echo b > b; diff -q a b"})
        fails = driver.call("bash", {"command": "ls /nowhere/at/all"})
        cut = driver.call("bash", {"command": "echo said; sleep 9", "timeoutMs": 500})
        said = "printf AAAA; sleep 0.3; printf 'BBBB\\n\\nlast\\n'; touch said"
        driver.call("process", {"action": "start", "command": said})
        deadline = monotonic() + scene.sizes.patience_s
        while not (scene.folder / "said").exists() and monotonic() < deadline:
            sleep(0.01)
        sleep(0.1)  # for its lines to arrive
        long = driver.call("process", {"action": "poll", "id": "job-1"})
        secret = driver.call("bash", {"command": f"printenv {TOKEN_NAME}"})
    cases = {
        "grep without a match succeeds": not none.error,
        "diff with a difference succeeds": not differ.error,
        "a failure is an error": fails.error,
        "the output before a time-out is kept": cut.error and "said" in cut.text,
        "a line said in two parts is one line": "AAAABBBB" in long.text,
        "blank lines are kept": "BBBB\n\nlast" in long.text,
        "secrets are withheld from the command": TOKEN not in secret.text,
    }
    return format_counts(cases)


ITEMS = (
    Item("bash-hang", "commands that hang a shell tool", "none hangs", hanging),
    Item("orphans", "processes left after stop, time limit and end of the session", "0", orphans),
    Item("bash-flood", "memory for 1 GB of output", "< 16 MB", flood),
    Item("bash-told", "reports about commands and jobs", "all correct", probe_messages),
)
