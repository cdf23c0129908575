"""Loads sub-agents for the `task` card from Markdown files.

User files are in `$XDG_CONFIG_HOME/indus/agents`, project files in `.indusvx/agents`. A file starts with front matter
between two `---` lines: `name`, `description`, `tools`, `model`, `max_turns` and `timeout`. The rest is the prompt. A
file grants no permissions: it can only narrow the session's tools, and calls go through the session's checks. It never
replaces a built-in agent, and a project agent never replaces a user's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from indusagi.core.app_dirs import config_home, is_within, read_small_file
from indusagi.core.faults import CoreError
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from induscode.addons.skills import split_front_matter
from induscode.permissions.rules import Effect, Rule, RuleOrigin, parse_rule

AgentOrigin: TypeAlias = Literal["indus", "user", "project"]
MAX_FILE_BYTES = 64 * 1024
MAX_FILES = 50
"""Files per directory. Every agent adds to each request."""
MAX_DESCRIPTION = 300
MOST_TURNS, MOST_SECONDS = 200, 3_600
NARROWED_TOOLS = frozenset({"bash", "edit", "webfetch", "write"})
"""Tools whose calls a specifier can limit, as in `bash(git log *)`."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ENTRY = re.compile(r"[^,()]+(?:\([^()]*\))?")
_LIST = re.compile(rf"(?:{_ENTRY.pattern})?(?:,(?:{_ENTRY.pattern})?)*")
_KEYS = {"name", "description", "tools", "model", "max_turns", "timeout"}


class AgentFileError(CoreError):
    """A file doesn't describe an agent. The message explains the mistake."""


@record(kw_only=True)
class AgentDefinition:
    """A kind of sub-agent."""

    name: str
    description: str
    prompt: str = ""
    tools: tuple[Rule, ...] | None = None
    """Its tools; `None` for the parent's, except `task`."""
    reads_only: bool = False
    """Whether it gets read-only tools only."""
    model: str | None = None
    """Its model; `None` for the session's."""
    max_turns: int | None = None
    timeout_s: int | None = None
    origin: AgentOrigin = "indus"


GENERAL = AgentDefinition(name="general", description="has every tool of yours but this one.")
EXPLORE = AgentDefinition(name="explore", description="only reads.", reads_only=True)


@record
class AgentFiles:
    """The agents of a session by name, and notes about skipped files."""

    agents: Mapping[str, AgentDefinition]
    notes: Sequence[str] = ()


BUILT_IN = AgentFiles({agent.name: agent for agent in (GENERAL, EXPLORE)})


def load_agents(cwd: str) -> AgentFiles:
    """Load the user's agents, then the project's. Blocks: call it in a thread."""
    agents, notes = dict(BUILT_IN.agents), list[str]()
    for origin, folder in find_folders(cwd, "agents", notes):
        for path in _list_files(folder, notes):
            try:
                agent = _read_agent(path, folder, origin, notes)
            except OSError as exc:
                notes.append(f"{path}: left out: {exc.strerror}")
            except AgentFileError as exc:
                notes.append(f"{path}: left out: {exc}")
            else:
                if agent.name in BUILT_IN.agents:
                    notes.append(f"{path}: left out: {agent.name} is an agent of indus; give it another name")
                elif agent.name in agents:
                    owner = "you have" if agents[agent.name].origin != origin else "another file has"
                    notes.append(f"{path}: left out: {owner} an agent {agent.name}")
                else:
                    agents[agent.name] = agent
    return AgentFiles(agents, notes)


def find_folders(cwd: str, name: str, notes: list[str]) -> Sequence[tuple[AgentOrigin, str]]:
    """Return the user's folder of this name and the project's, unless that's a link out of the project."""
    project = os.path.join(cwd, ".indusvx", name)
    folders: list[tuple[AgentOrigin, str]] = [("user", os.path.join(config_home(), "indus", name))]
    if is_within(os.path.realpath(project), os.path.realpath(cwd)):
        return [*folders, ("project", project)]
    notes.append(f"{project}: left out: it leads out of the project")
    return folders


def read_markdown(path: str, folder: str) -> tuple[str | None, str]:
    """Read a file's front matter, if any, and the rest; `OSError` if it's too large or a link out of `folder`."""
    real = os.path.realpath(path)
    if not is_within(real, os.path.realpath(folder)):
        raise OSError(0, "it is a link that leads out of the directory")
    text = clean_text(read_small_file(real, MAX_FILE_BYTES, follow=False).decode("utf-8", "replace"))[0]
    return split_front_matter(text)


def _list_files(folder: str, notes: list[str]) -> Sequence[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".md"))
    except FileNotFoundError:
        return ()
    except OSError as exc:
        notes.append(f"{folder}: left out: {exc.strerror}")
        return ()
    if len(names) > MAX_FILES:
        notes.append(f"{folder}: it has more files than the {MAX_FILES} that are read")
    return [os.path.join(folder, name) for name in names[:MAX_FILES]]


def _read_agent(path: str, folder: str, origin: AgentOrigin, notes: list[str]) -> AgentDefinition:
    """Read a file; `AgentFileError` if it doesn't describe an agent."""
    front, prompt = read_markdown(path, folder)
    if front is None:
        raise AgentFileError("it has no front matter: write name, description and tools between two lines ---")
    values = _parse_front_matter(front)
    unknown = [key for key in values if key not in _KEYS]
    if unknown:
        notes.append(f"{path}: unknown and ignored: {', '.join(unknown)}")
    name = " ".join(values.get("name", [])) or os.path.basename(path).removesuffix(".md")
    if _NAME.fullmatch(name) is None:
        raise AgentFileError(f"the name {name!r} is invalid: use letters, digits, '_' and '-'")
    description = " ".join(" ".join(values.get("description", [])).split())
    if not description:
        raise AgentFileError("it has no description, by which a model could choose it")
    if not prompt:
        raise AgentFileError("it has no text below the front matter, which is its prompt")
    model = " ".join(values.get("model", []))
    return AgentDefinition(
        name=name,
        description=cut_text(description, MAX_DESCRIPTION),
        prompt=prompt,
        tools=_parse_tools(values["tools"]) if "tools" in values else None,
        model=model if model not in {"", "inherit"} else None,
        max_turns=_parse_number(values, "max_turns", MOST_TURNS),
        timeout_s=_parse_number(values, "timeout", MOST_SECONDS),
        origin=origin,
    )


def _parse_front_matter(text: str) -> dict[str, list[str]]:
    """Parse `key: value` lines, and lists of `- value` lines below a key."""
    values: dict[str, list[str]] = {}
    key = ""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if stripped.startswith("- ") and key:
            values[key].append(stripped[2:].strip().strip("\"'"))
            continue
        head, colon, value = stripped.partition(":")
        if line[0].isspace() or not colon:
            raise AgentFileError(
                f"the line {cut_text(stripped, 60)!r} of its front matter is neither key nor value: write each "
                "value behind its key, in one line"
            )
        key = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", head.strip()).lower().replace("-", "_")
        value = value.strip().strip("\"'")
        values[key] = [value] if value else []
    return values


def _parse_tools(values: Sequence[str]) -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for value in values:
        is_list = value.startswith("[") and value.endswith("]")
        text = re.sub("[\"']", "", value[1:-1]) if is_list else value
        entries = [entry.strip().strip("\"'") for entry in _ENTRY.findall(text)]
        if _LIST.fullmatch(text) is None:  # dropping half a specifier would drop the limit
            raise AgentFileError(f"its tools cannot be read: {cut_text(text, 60)!r}; write read, grep, bash(git log *)")
        for entry in filter(None, entries):
            rule = parse_rule(entry, Effect.ALLOW, RuleOrigin.FLAG)
            if not isinstance(rule, Rule):
                raise AgentFileError(f"its tools: {rule}")
            if rule.specifier is not None and rule.tool.lower() not in NARROWED_TOOLS:
                tools = ", ".join(sorted(NARROWED_TOOLS))
                raise AgentFileError(f"its tools: {rule}: brackets limit {tools} only; write {rule.tool}")
            rules.append(rule if rule.specifier is None else replace(rule, tool=rule.tool.lower()))
    return tuple(rules)


def _parse_number(values: Mapping[str, Sequence[str]], key: str, most: int) -> int | None:
    text = " ".join(values.get(key, ()))
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise AgentFileError(f"{key} is {cut_text(text, 20)!r}: write a number from 1 to {most:,}")
    return int(text)
