"""State that a conversation stores in addition to its messages, for a continued session to restore.

It includes plan mode, the checklist, session rules, the model and background jobs. After every message and at the end,
the session appends the changes to the transcript. Jobs end with their session, and the next session learns which ones
ended, or still run after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from anyio import to_thread

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text
from induscode.conversations.transcript import Transcript, build_row
from induscode.permissions.rules import Rule, RuleOrigin, dump_rule, parse_rule_row

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from induscode.permissions.check import Permissions
    from induscode.permissions.flow import FlowGuard
    from induscode.permissions.plan_mode import PlanMode

_INITIAL_FACTS: tuple[JsonObject, ...] = (
    {"active": False},
    {"list": "todo_set", "items": []},
    {"list": "todo", "items": []},
)
"""Facts of a new conversation: plan mode off, empty lists."""
PLAN_OP, CHECKLIST_OP, RULE_OP, MODEL_OP, JOB_OP = "plan", "checklist", "rule", "model", "job"
FLOW_OP = "flow"
_CHECKLISTS = ("todo_set", "todo")
"""Lists in transcripts. Before version 2.1, `todo` had a separate list."""
_MAX_COMMAND_CHARS = 80


@record(kw_only=True)
class LostJob:
    """A job that was running when the conversation's last session ended."""

    id: str
    command: str
    mark: str
    """The marker in the environment of its processes."""
    runs: bool = False
    """Whether it still runs because that session crashed."""

    def __str__(self) -> str:
        command = cut_text(" ".join(clean_text(self.command)[0].split()), _MAX_COMMAND_CHARS)
        if self.runs:
            return f"{self.id} ({command}) still runs without a session: `indus mcp doctor --end-leftovers` ends it"
        return f"{self.id} ({command}) has ended with the last session"


class KeptState:
    """State of a conversation, together with its stored rows."""

    def __init__(
        self, transcript: Transcript, context: ToolContext, plan_mode: PlanMode, permissions: Permissions | None
    ) -> None:
        self._transcript, self._context = transcript, context
        self._plan_mode, self._permissions = plan_mode, permissions
        self._stored: dict[str, JsonObject] = {}
        """The last row of each part of the state, without the time."""
        self.model = ""
        """Label of the current model."""

    def restore(self) -> Sequence[LostJob]:
        """Restore the state from the transcript, and return the jobs that were running. Blocks.

        A rewind doesn't undo the user's rules, nor what the conversation has read, only the rest of the state.
        """
        from indusagi.capabilities.checklist import checklist_of  # noqa: PLC0415 — loaded with the deck

        self._stored = {}
        rules: dict[str, Rule] = {}
        for row in self._transcript.rows():
            if row.get("op") == FLOW_OP and self._flow is not None:
                self._flow.restore_call(row)
                facts = {name: value for name, value in row.items() if name not in {"op", "at"}}
                self._stored[f"{FLOW_OP} {row.get('label')}"] = facts
            rule = parse_rule_row(row, "") if row.get("op") == RULE_OP else None
            if not isinstance(rule, Rule):
                continue
            rule = replace(rule, origin=RuleOrigin.SESSION, file=None)
            if row.get("removed") is True:
                rules.pop(_rule_key(rule), None)
                self._stored.pop(_rule_key(rule), None)
            else:
                rules[_rule_key(rule)] = rule
                self._stored[_rule_key(rule)] = dump_rule(rule)
        for _, row in self._transcript.visible_rows():
            facts = {name: value for name, value in row.items() if name not in {"op", "at"}}
            if row.get("op") in {PLAN_OP, MODEL_OP}:
                self._stored[str(row["op"])] = facts
            elif row.get("op") == CHECKLIST_OP and row.get("list") in _CHECKLISTS:
                self._stored[f"{CHECKLIST_OP} {row['list']}"] = facts
            elif row.get("op") == JOB_OP and isinstance(row.get("mark"), str):
                self._stored[f"{JOB_OP} {row['mark']}"] = facts
        if self._permissions is not None:
            self._permissions.restore_rules(rules.values())
        self._plan_mode.active = self._stored.get(PLAN_OP, {}).get("active") is True
        own = self._list_stored_items("todo_set", ("id", "text", "status"))
        weighted = self._list_stored_items("todo", ("task", "state", "weight"))
        older = [
            {"id": f"todo-{number}", "text": item["task"], "status": item["state"], "weight": item["weight"]}
            for number, item in enumerate(weighted, 1)
        ]
        checklist_of(self._context).restore([*own, *older])
        jobs = [facts for key, facts in self._stored.items() if key.startswith(f"{JOB_OP} ")]
        return [
            LostJob(id=str(facts.get("id")), command=str(facts.get("command")), mark=str(facts.get("mark")))
            for facts in jobs
            if facts.get("running") is True
        ]

    @property
    def _flow(self) -> FlowGuard | None:
        return None if self._permissions is None else self._permissions.flow

    @property
    def last_model(self) -> str:
        """Label of the last model to answer; empty before the first answer."""
        return str(self._stored.get(MODEL_OP, {}).get("model", ""))

    async def save(self) -> None:
        """Append the changes since the last call."""
        current = {**self._describe(), **await self._describe_jobs()}
        # A job that's missing from this session's table has ended.
        for key, facts in self._stored.items():
            if key.startswith(f"{JOB_OP} ") and key not in current and facts.get("running") is True:
                current[key] = {**facts, "running": False}
        removed = [key for key in self._stored if key.startswith(f"{RULE_OP} ") and key not in current]
        changed = {key: facts for key, facts in current.items() if self._stored.get(key) != facts}
        # An initial state isn't a change.
        for key in [key for key, facts in changed.items() if key not in self._stored and facts in _INITIAL_FACTS]:
            del changed[key]
        rows = [build_row(RULE_OP, {**self._stored.pop(key), "removed": True}) for key in removed]
        rows += [build_row(key.partition(" ")[0], facts) for key, facts in changed.items()]
        self._stored.update(changed)
        if rows:
            await to_thread.run_sync(self._transcript.append_rows, rows)

    def _describe(self) -> dict[str, JsonObject]:
        from indusagi.capabilities.checklist import checklist_of  # noqa: PLC0415 — loaded with the deck

        own: list[JsonValue] = [item.to_json() for item in checklist_of(self._context).items]
        state: dict[str, JsonObject] = {
            PLAN_OP: {"active": self._plan_mode.active},
            f"{CHECKLIST_OP} todo_set": {"list": "todo_set", "items": own},
            f"{CHECKLIST_OP} todo": {"list": "todo", "items": []},
        }
        if self.model:
            state[MODEL_OP] = {"model": self.model}
        for facts in () if self._flow is None else self._flow.dump_calls():
            state[f"{FLOW_OP} {facts['label']}"] = facts
        for rule in () if self._permissions is None else self._permissions.session_rules:
            state[_rule_key(rule)] = dump_rule(rule)
        return state

    async def _describe_jobs(self) -> Mapping[str, JsonObject]:
        from indusagi.capabilities.jobs import list_jobs  # noqa: PLC0415 — loaded with the deck

        jobs: dict[str, JsonObject] = {}
        for job in list_jobs(self._context):
            state = job.state() if job.over else await job.look()
            key = f"{JOB_OP} {job.process.mark}"
            if state.running or key in self._stored:
                jobs[key] = {
                    "id": job.id,
                    "mark": job.process.mark,
                    "command": job.command,
                    "cwd": job.cwd,
                    "running": state.running,
                }
        return jobs

    def _list_stored_items(self, name: str, fields: tuple[str, ...]) -> Sequence[Mapping[str, str]]:
        """List the items of a stored checklist whose `fields` are all strings."""
        items = self._stored.get(f"{CHECKLIST_OP} {name}", {}).get("items")
        return [
            cast("Mapping[str, str]", item)
            for item in (items if isinstance(items, list) else ())
            if is_json_object(item) and all(isinstance(item.get(field), str) for field in fields)
        ]


def _rule_key(rule: Rule) -> str:
    return f"{RULE_OP} {rule.effect} {rule} {rule.workspace} {rule.server} {rule.pin}"
