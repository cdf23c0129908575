"""`python -m outside.sandboxes`: start real servers without a sandbox and in each profile, and compare.

Each start finds the same home and workspace. A server whose first start fails isn't counted. Two processes take turns,
and every outcome is kept, so that a run that was interrupted goes on where it was; `--again` starts over. Ends with
0 if at least 95 of 100 are unchanged in `standard`, with 1 otherwise, with 2 if something couldn't be installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from indusagi.capabilities.sandbox.profile import ServerProfile, format_profile
from indusagi.core.json import compact_json
from indusagi.core.time import iso_utc
from induscode.servers.learning import learn_behaviour
from outside.install import HOME, ROOT, CannotInstall, find_node, node_packages, python_commands
from outside.remote import pages
from outside.sandboxes.roster import Places, list_subjects
from outside.sandboxes.visits import Surroundings, build_config, start_once
from outside.say import aligned, complain, markdown, say, write_between
from outside.servers import make_scratch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outside.sandboxes.roster import Subject
    from outside.sandboxes.visits import Outcome

_COLUMNS = ("standard", "strict", "learned")
_HEAD = ("server", "version", "tools", *_COLUMNS, "remark")
_WIDTHS = (42, 12, 5, 8, 8, 8, 6)
_WANTED = 0.95
_SHARES = 2
_FEED = '<rss version="2.0"><channel><title>a</title><item><title>b</title></item></channel></rss>'
_BUBBLEWRAP = Path(sys.prefix) / "bubblewrap/bin"
_REGISTRY = re.compile(r"registry\.[a-z.-]+")
_ADDRESS = re.compile(r'"\d+\.\d+\.\d+\.\d+:\d+",|,?"\d+\.\d+\.\d+\.\d+:\d+"')
"""Private addresses that names have on the machine of a run."""
_RESULTS = HOME / "sandboxes/results"


class _Options(argparse.Namespace):
    only: str
    columns: str
    again: bool
    share: int | None


def main(arguments: Sequence[str]) -> int:
    """Start them all and return the exit code."""
    parser = argparse.ArgumentParser(prog="outside.sandboxes", description=__doc__)
    parser.add_argument("--only", default="", help="only servers whose name holds this")
    parser.add_argument("--columns", default=",".join(_COLUMNS), help="only these columns")
    parser.add_argument("--again", action="store_true", help="forget earlier outcomes")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments, _Options())
    os.environ["PATH"] = f"{os.environ['PATH']}{os.pathsep}{_BUBBLEWRAP}"
    # Below /tmp, each would lie in what a sandbox puts in the place of /tmp.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
        folder = Path(root).resolve()
        template = folder / "template"
        template.mkdir()
        fill_workspace(template)
        surroundings = Surroundings(folder, template)
        with pages(template) as page:
            try:
                places = install_servers(surroundings.work, page)
            except CannotInstall as exc:
                complain(f"outside.sandboxes: {exc}")
                return 2
            subjects = [one for one in list_subjects(places) if options.only in one.package]
            if options.share is not None:
                os.environ |= {"HOME": str(surroundings.home), "XDG_STATE_HOME": str(folder / "state")}
                asyncio.run(_compare_all(subjects[options.share :: _SHARES], surroundings, options.columns.split(",")))
                return 0
    if options.again:
        for path in _RESULTS.glob("*.json"):
            path.unlink()
    say(aligned(_HEAD, _WIDTHS))
    command = [sys.executable, "-m", "outside.sandboxes", *arguments]
    children = [subprocess.Popen([*command, "--share", str(share)], cwd=ROOT) for share in range(_SHARES)]
    for child in children:
        child.wait()
    return _report([row for subject in subjects if (row := _read(subject)) is not None])


def install_servers(work: Path, page: str) -> Places:
    """Install the servers that aren't there.

    Raises:
        CannotInstall: A server can't be installed.
    """
    node = find_node()
    if node is None:
        raise CannotInstall("no node 22 or newer with npm; run `make setup`, or install one")
    commands = [
        python_commands(name)
        for name in ("servers", "modern", "varied", "unordered", "sandboxes/legacy", "sandboxes/modern")
    ]
    return Places(commands, node.path, node_packages(node), node_packages(node, "sandboxes"), work, page)


def fill_workspace(template: Path) -> None:
    """Write the files that the servers are asked about."""
    make_scratch(template)
    (template / "some.py").write_text("import os\n", "utf-8")
    (template / "some.js").write_text("let a = 1;\n", "utf-8")
    (template / "some.xml").write_text(_FEED, "utf-8")
    (template / "some.md").write_text("# A note\n", "utf-8")


# -- comparing --------------------------------------------------------------------------------


async def _compare_all(subjects: Sequence[Subject], surroundings: Surroundings, columns: Sequence[str]) -> None:
    for subject in subjects:
        row = _read(subject) or {"server": subject.package, "version": subject.version}
        wanted = [column for column in columns if column not in row]
        if not wanted or row.get("fault"):
            continue
        direct = await start_once(subject.server, surroundings, None)
        row |= {"tools": str(sum(key.startswith("tool ") for key in direct.listed)), "fault": direct.fault}
        for column in [] if direct.fault else wanted:
            if column == "learned":
                await _compare_learned(subject, surroundings, direct, row)
            else:
                profile = ServerProfile(name="strict" if column == "strict" else "standard")
                row[column] = (await start_once(subject.server, surroundings, profile)).differs_from(direct)
        path = _find_result(subject)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(row), "utf-8")
        say(aligned(_cells(row), _WIDTHS))


async def _compare_learned(subject: Subject, surroundings: Surroundings, direct: Outcome, row: dict[str, str]) -> None:
    surroundings.renew()
    server = subject.server
    run = await learn_behaviour(
        build_config(server, surroundings.work), [(call.tool, call.arguments) for call in server.calls]
    )
    # As somebody would who says yes to the hosts it was refused.
    asked = [refusal.target for refusal in run.refusals if refusal.key == "hosts"]
    profile = replace(run.profile, hosts=(*(run.profile.hosts or ()), *asked)) if asked else run.profile
    learned = await start_once(server, surroundings, profile)
    row["learned"] = learned.differs_from(direct, is_offline=True)
    if not row["learned"] and learned.differs_from(direct):
        row["note"] = "a host can't be reached from here, sandbox or not"
    row["profile"] = compact_json(format_profile(profile)).replace(str(surroundings.home), "~")


def _find_result(subject: Subject) -> Path:
    return _RESULTS / f"{subject.package.replace('/', '_')}-{subject.version}.json"


def _read(subject: Subject) -> dict[str, str] | None:
    path = _find_result(subject)
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def _cells(row: dict[str, str]) -> tuple[str, ...]:
    verdicts = [("differs" if row[column] else "same") if column in row else "" for column in _COLUMNS]
    remarks = [f"{column}: {_shorten(row[column])}" for column in _COLUMNS if row.get(column)]
    if row.get("note"):
        remarks.append(row["note"])
    if row.get("profile"):
        remarks.append(f"learned profile: {row['profile']}")
    if row["fault"]:
        remarks = [f"not counted: {_shorten(row['fault'])}"]
    told = _ADDRESS.sub("", _REGISTRY.sub("REGISTRY", "; ".join(remarks)))
    return (row["server"], row["version"], row["tools"], *verdicts, told)


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def _report(rows: Sequence[dict[str, str]]) -> int:
    counted = [row for row in rows if not row["fault"]]
    totals = {column: sum(row.get(column) == "" for row in counted) for column in _COLUMNS}
    told = ", ".join(f"{count} unchanged in {column}" for column, count in totals.items())
    say(f"{len(counted)} servers, {told}")
    if all(column in row for row in counted for column in _COLUMNS):
        commit = subprocess.run(
            ("git", "rev-parse", "--short=8", "HEAD"), cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        lines = [f"{iso_utc()[:10]}, commit {commit}: {len(counted)} servers, {told}.", ""]
        write_between(
            ROOT / "docs/evidence/sandboxes.md", "sandboxes", [*lines, *markdown(_HEAD, map(_cells, counted))]
        )
    return 0 if totals["standard"] >= _WANTED * len(counted) > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
