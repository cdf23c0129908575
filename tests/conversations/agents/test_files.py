"""Agents from Markdown files: what is read, what is left out, and what a file cannot do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from induscode.conversations.agents.files import MAX_DESCRIPTION, MAX_FILE_BYTES, MAX_FILES, load_agents

if TYPE_CHECKING:
    from pathlib import Path

    from induscode.conversations.agents.files import AgentFiles

REVIEWER = """\
---
name: reviewer
description: Reads a change and lists its errors.
tools: read, Grep, bash(git log *), web_fetch
model: anthropic:small
max_turns: 7
timeout: 90
---
You review. Be brief.
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "project" / ".indusvx" / "agents"
    folder.mkdir(parents=True)
    (tmp_path / "config" / "indus" / "agents").mkdir(parents=True)
    return folder


def load(project: Path) -> AgentFiles:
    return load_agents(str(project.parents[1]))


def users(project: Path) -> Path:
    return project.parents[2] / "config" / "indus" / "agents"


def test_file_gives_name_description_tools_model_limits_and_prompt(project: Path) -> None:
    (project / "r.md").write_text(REVIEWER, encoding="utf-8")
    found = load(project)
    assert found.notes == []
    assert [*found.agents] == ["general", "explore", "reviewer"]
    agent = found.agents["reviewer"]
    assert agent.description == "Reads a change and lists its errors."
    assert [str(rule) for rule in agent.tools or ()] == ["read", "Grep", "bash(git log *)", "web_fetch"]
    assert (agent.model, agent.max_turns, agent.timeout_s) == ("anthropic:small", 7, 90)
    assert (agent.prompt, agent.origin) == ("You review. Be brief.", "project")


@pytest.mark.parametrize("tools", ["tools:\n  - read\n  - bash(git log *)", 'tools: [read, "bash(git log *)"]'])
def test_tools_may_be_a_list(project: Path, tools: str) -> None:
    (project / "r.md").write_text(f"---\ndescription: d\n{tools}\n---\nx", encoding="utf-8")
    assert [str(rule) for rule in load(project).agents["r"].tools or ()] == ["read", "bash(git log *)"]


def test_agent_without_tools_has_those_of_its_parent_and_one_with_an_empty_list_has_none(project: Path) -> None:
    (project / "all.md").write_text("---\ndescription: d\nmodel: inherit\n---\nx", encoding="utf-8")
    (project / "none.md").write_text("---\ndescription: d\ntools:\n---\nx", encoding="utf-8")
    agents = load(project).agents
    assert (agents["all"].tools, agents["all"].model, agents["none"].tools) == (None, None, ())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no front matter", "it has no front matter"),
        ("---\nname: x\n---\nbody", "it has no description"),
        ("---\ndescription: d\n---\n \n", "it has no text"),
        ("---\nname: a b\ndescription: d\n---\nx", "the name 'a b' is invalid"),
        ("---\ndescription: d\nmax_turns: 0\n---\nx", "max_turns is '0': write a number from 1 to 200"),
        ("---\ndescription: d\ntimeout: 4000\n---\nx", "timeout is '4000': write a number from 1 to 3,600"),
        ("---\ndescription: d\ntools: read(docs/*)\n---\nx", "brackets limit bash, edit, webfetch, write only"),
        ("---\ndescription: d\ntools: bash(git (log)\n---\nx", "its tools cannot be read"),
        ("---\ndescription: d\ntools: bash(a; b)\n---\nx", "is about one command only"),
        ("---\ndescription: d\n  nested: 1\n---\nx", "neither key nor value"),
        ("---\nname: explore\ndescription: d\n---\nx", "explore is an agent of indus"),
        ("---\nname: general\ndescription: d\ntools: bash\n---\nx", "general is an agent of indus"),
    ],
)
def test_bad_file_is_a_note(project: Path, text: str, why: str) -> None:
    (project / "bad.md").write_text(text, encoding="utf-8")
    (project / "good.md").write_text(REVIEWER, encoding="utf-8")
    found = load(project)
    assert [*found.agents] == ["general", "explore", "reviewer"]
    assert not (found.agents["general"].tools)
    assert not (found.agents["explore"].tools)
    (note,) = found.notes
    assert note.startswith(f"{project / 'bad.md'}: left out: ")
    assert why in note


def test_project_never_replaces_an_agent_of_the_user(project: Path) -> None:
    (project / "r.md").write_text(REVIEWER.replace("Be brief", "Send everything"), encoding="utf-8")
    (users(project) / "r.md").write_text(REVIEWER, encoding="utf-8")
    found = load(project)
    assert (found.agents["reviewer"].origin, "Send" in found.agents["reviewer"].prompt) == ("user", False)
    assert "you have an agent reviewer" in found.notes[0]


def test_links_out_of_the_directory_are_left_out(project: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text(REVIEWER, encoding="utf-8")
    (project / "r.md").symlink_to(secret)
    found = load(project)
    assert "reviewer" not in found.agents
    assert "a link that leads out of the directory" in found.notes[0]


def test_agents_directory_that_leads_out_of_the_project_is_left_out(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "r.md").write_text(REVIEWER, encoding="utf-8")
    project.rmdir()
    project.symlink_to(other)
    found = load(project)
    assert "reviewer" not in found.agents
    assert "it leads out of the project" in found.notes[0]


def test_files_are_bounded_in_size_and_number(project: Path) -> None:
    (project / "big.md").write_text(REVIEWER + "x" * MAX_FILE_BYTES, encoding="utf-8")
    os.mkfifo(project / "fifo.md")
    found = load(project)
    assert [*found.agents] == ["general", "explore"]
    assert len(found.notes) == 2
    for number in range(MAX_FILES + 1):
        (project / f"a{number:03}.md").write_text("---\ndescription: d\n---\nx", encoding="utf-8")
    found = load(project)
    assert len(found.agents) == MAX_FILES + 2
    assert "more files than the 50 that are read" in found.notes[0]


def test_invisible_characters_are_removed_and_descriptions_cut(project: Path) -> None:
    text = f"---\ndescription: d\u202ee {'x' * 400}\n---\nprompt\U000e0041\u200b end"
    (project / "r.md").write_text(text, encoding="utf-8")
    agent = load(project).agents["r"]
    assert agent.prompt == "prompt end"
    assert "\u202e" not in agent.description
    assert len(agent.description) < MAX_DESCRIPTION + 50


def test_unknown_keys_are_ignored_with_a_note(project: Path) -> None:
    (project / "r.md").write_text(REVIEWER.replace("timeout: 90", "color: blue"), encoding="utf-8")
    found = load(project)
    assert "reviewer" in found.agents
    assert "unknown and ignored: color" in found.notes[0]
