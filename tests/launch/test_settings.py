"""The settings of a user and a project, and the messages that advise one."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from induscode.commands import program
from induscode.connectors.live import web_settings
from induscode.launch.flags import flag_specs
from induscode.launch.invocation import build_invocation
from induscode.launch.settings import (
    ADDONS_REQUIRED,
    MODEL_MAX_REQUESTS,
    MODEL_NAME,
    SANDBOX,
    SETTINGS,
    WEB_ALLOW_PRIVATE,
    WEB_MAX_BYTES,
    WEB_PORTS,
    WEB_TIMEOUT_S,
    SettingError,
    Settings,
    build_settings_schema,
    load_settings,
    project_settings_path,
    user_settings_path,
)
from induscode.launch.views import View

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCE = Path(__file__).parents[2] / "src"


def _write(path: str, content: object) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    Path(path).write_text(text, encoding="utf-8")
    return path


def _user(content: object) -> str:
    return _write(user_settings_path(os.environ), content)


def _project(cwd: Path, content: object) -> str:
    return _write(project_settings_path(str(cwd)), content)


_EXAMPLES: dict[str, tuple[Any, Any, list[Any]]] = {
    "web.allow_private": (["a:1", "[::1]"], ("a:1", "[::1]"), [3, ["a b"], [1], ["http://a/"], [""]]),
    "web.ports": ([80, 81], (80, 81), [80, [0], ["80"], [70000], [True]]),
    "web.max_bytes": (4096, 4096, ["1", 1, True, 10**12, 1.5]),
    "web.timeout_s": (5, 5, [0, 601, None]),
    "search.searxng_url": ("http://s:8080", "http://s:8080", ["s", 3, "ftp://s"]),
    "sandbox": ("required", "required", ["requird", True, None]),
    "review": ("note", "note", ["maybe", True, None]),
    "model.name": ("openai:x", "openai:x", ["", 3]),
    "model.base_url": ("https://h", "https://h", ["h", ""]),
    "model.max_requests": (7, 7, [0, "7", -1]),
    "addons.required": (["audit"], ("audit",), ["audit", [""], [1], None]),
    "calls.record": ("payloads", "payloads", ["all", True, None]),
    "calls.keep_days": (7, 7, [0, "7", 4_000]),
    "calls.payload_hours": (2, 2, [0, 1.5, 1_000]),
    "approvals.mode": ("ask", "ask", ["yes", True, None]),
    "approvals.wait_s": (60, 60, [0, "60", 100_000]),
    "approvals.notify": (["say", "it"], ("say", "it"), [[], [1], "mail", "ftp://x", None]),
    "approval.harmless": (False, False, ["no", 0, None]),
    "flow.mode": ("deny", "deny", ["yes", True, None]),
    "serve.views": (
        {"phone": {"servers": ["git*"], "read_only": True}},
        {"phone": View(name="phone", servers=("git*",), read_only=True)},
        [
            [],
            {"": {}},
            {"v": 1},
            {"v": {"frob": 1}},
            {"v": {"servers": "x"}},
            {"v": {"tools": [""]}},
            {"v": {"rename": {"a": 1}}},
            {"v": {"rename": {"a": "c", "b": "c"}}},
            {"v": {"read_only": "yes"}},
            {"v": {"schemas": "all"}},
            {"v": {"token_env": 3}},
        ],
    ),
    "serve.calls_per_day": (100, 100, [-1, "100", 1.5, None]),
    "serve.tokens_per_day": (0, 0, [-1, True, 10**13]),
    "cluster.affinity": ({"a": "gpu-*"}, {"a": "gpu-*"}, ["a", {"a": ""}, {"a": 1}, None]),
    "cluster.brokers": (["nats://a"], ("nats://a",), ["nats://a", [""], [1], None]),
    "cluster.credentials_file": ("~/broker", "~/broker", ["", 1]),
    "cluster.idle_stop": (900, 900, ["900", -1, 1.5, None, True]),
    "cluster.key_file": ("/etc/indus/cluster.key", "/etc/indus/cluster.key", ["", 1, None]),
    "tool_search.mode": ("on", "on", ["always", True]),
    "tool_search.share": (25, 25, [0, 101, "10"]),
    "tool_search.count": (0, 0, [-1, "many"]),
    "tool_search.always_list": (["git__*"], ("git__*",), ["git__*", [""]]),
    "session.vi": (True, True, ["yes", 1, None]),
    "registry.url": ("https://mirror.example", "https://mirror.example", ["mirror", 3]),
    "code.enabled": (True, True, ["yes", 1, None]),
    "code.max_calls": (7, 7, [0, "7", 10**6]),
    "code.timeout_s": (30, 30, [0, 1.5, 10**6]),
    "code.memory_mb": (64, 64, [1, "64", 10**6]),
}


def test_every_setting_has_an_example_here() -> None:
    assert list(_EXAMPLES) == list(SETTINGS)


@functools.cache
def _schema() -> Any:
    schema = build_settings_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("key", SETTINGS)
def test_finding_b9_a_setting_is_read_nested_and_with_dots(key: str, tmp_path: Path) -> None:
    given, value, _ = _EXAMPLES[key]
    group, _, name = key.partition(".")
    for document in ({key: given}, {group: {name: given}} if name else {key: given}):
        path = _user(document)
        settings = load_settings(str(tmp_path), os.environ)
        assert settings.get(SETTINGS[key]) == value
        assert settings.origin(SETTINGS[key]) == f"user {path}"
        _schema().validate(document)


@pytest.mark.parametrize("key", SETTINGS)
def test_finding_b9_a_wrong_value_is_an_error_that_names_file_and_key(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in _EXAMPLES[key][2]:
        path = _user({key: wrong})
        with pytest.raises(SettingError, match=f"{re.escape(path)}: {re.escape(key)} takes "):
            load_settings(str(tmp_path), os.environ)
    assert program.run(["-C", str(tmp_path), "mcp", "list"]) == 2
    assert key in capsys.readouterr().err


@pytest.mark.parametrize(("text", "said"), [("{", ":1:2: invalid JSON"), ("[]", "not an object")])
def test_a_file_that_cannot_be_read_is_an_error_of_the_user_and_a_note_of_the_project(
    text: str, said: str, tmp_path: Path
) -> None:
    _project(tmp_path, text)
    (note,) = load_settings(str(tmp_path), os.environ).notes
    assert said in str(note)
    _user(text)
    with pytest.raises(SettingError, match=re.escape(said)):
        load_settings(str(tmp_path), os.environ)


def test_a_key_that_does_not_exist_is_a_note_with_the_one_that_was_meant(tmp_path: Path) -> None:
    _user({"$schema": "x", "web": {"allow_privat": []}, "sandbx": 1, "zzz": 1})
    notes = [str(note) for note in load_settings(str(tmp_path), os.environ).notes]
    assert ["did you mean 'web.allow_private'?" in notes[0], "did you mean 'sandbox'?" in notes[1]]
    assert "there is no setting 'zzz'" in notes[2]
    assert "did you mean" not in notes[2]


def test_finding_b9_a_project_can_only_make_a_setting_stricter(tmp_path: Path) -> None:
    _user({"web.ports": [80, 443, 9000], "web.timeout_s": 20})
    path = _project(
        tmp_path,
        {
            "web": {"ports": [443, 22], "timeout_s": 60, "max_bytes": 2048, "allow_private": ["localhost"]},
            "sandbox": "required",
            "model": {"name": "evil", "max_requests": 3},
        },
    )
    settings = load_settings(str(tmp_path), os.environ)
    assert settings.get(WEB_PORTS) == (443,)
    assert settings.get(WEB_TIMEOUT_S) == 20
    assert settings.get(WEB_MAX_BYTES) == 2048
    assert settings.get(WEB_ALLOW_PRIVATE) == ()
    assert settings.get(SANDBOX) == "required"
    assert settings.get(MODEL_NAME) is None
    assert settings.get(MODEL_MAX_REQUESTS) == 3
    assert settings.origin(SANDBOX) == f"project {path}"
    said = "\n".join(map(str, settings.notes))
    for key in ("web.ports", "web.timeout_s", "web.allow_private", "model.name"):
        assert f"'{key}' is ignored" in said
    assert "'sandbox'" not in said


def test_a_project_cannot_make_the_sandbox_weaker(tmp_path: Path) -> None:
    _user({"sandbox": "required"})
    _project(tmp_path, {"sandbox": "off"})
    assert load_settings(str(tmp_path), os.environ).get(SANDBOX) == "required"


def test_finding_b9_a_flag_beats_the_files(tmp_path: Path) -> None:
    _user({"sandbox": "required", "model": {"name": "a", "max_requests": 3}})
    settings = load_settings(str(tmp_path), os.environ)
    found = build_invocation({"sandbox": "auto", "max_requests": "50"}, "/w", settings, {"sandbox"})
    assert (found.sandbox, found.model, found.max_requests) == ("auto", "a", 3)
    assert found.settings.origin(SANDBOX) == "flag --sandbox"


def test_finding_b9_servers_of_the_flag_come_to_those_of_the_file() -> None:
    before = Settings().with_flag(WEB_ALLOW_PRIVATE, ("a",))
    found = build_invocation({"web_allow": ("b:1",)}, "/w", before)
    assert web_settings(found.settings).allow_private == ("a", "b:1")
    with pytest.raises(ValueError, match="--web-allow takes"):
        build_invocation({"web_allow": ("http://b",)}, "/w")


def test_a_setting_of_the_user_is_no_flag_beside_no_tools(tmp_path: Path) -> None:
    _user({"sandbox": "required"})
    settings = load_settings(str(tmp_path), os.environ)
    assert build_invocation({"no_tools": True}, "/w", settings).no_tools


class TestCommand:
    def test_it_shows_values_and_origins(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("INDUS_SEARXNG_URL", "http://s")
        view = {"tools": ["git__*"], "read_only": True, "rename": {"git__log": "log"}}
        path = _user({"web": {"allow_private": ["a:1"]}, "serve": {"views": {"phone": view}}, "nope": 1})
        assert program.run(["settings", "show", "--json", "-C", str(tmp_path)]) == 0
        shown = capsys.readouterr()
        rows = {row["key"]: row for row in json.loads(shown.out)["settings"]}
        assert list(rows) == list(SETTINGS)
        assert rows["web.allow_private"]["value"] == ["a:1"]
        assert rows["serve.views"]["value"] == {"phone": view}
        assert rows["web.allow_private"]["origin"] == f"user {path}"
        assert rows["web.allow_private"]["flag"] == "--web-allow"
        assert rows["search.searxng_url"]["origin"] == "variable INDUS_SEARXNG_URL"
        assert "no setting 'nope'" in shown.err
        assert program.run(["-C", str(tmp_path), "settings"]) == 0
        shown = capsys.readouterr()
        assert re.search(r"web.allow_private +a:1 +user ", shown.out)
        assert re.search(r"serve.views +phone +user ", shown.out)

    def test_it_names_the_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert program.run(["settings", "path"]) == 0
        assert capsys.readouterr().out == f"{user_settings_path(os.environ)}\n"
        assert program.run(["settings", "path", "--project", "-C", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"{tmp_path}/.indusvx/settings.json\n"

    def test_it_checks_the_files(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["settings", "check", "-C", str(tmp_path)]
        assert program.run(words) == 0
        _project(tmp_path, {"model.name": "x"})
        assert program.run(words) == 1
        assert "a project cannot set it" in capsys.readouterr().err
        _user({"sandbox": 3})
        assert program.run(words) == 1
        assert program.run(["settings", "-C", str(tmp_path)]) == 2
        assert "sandbox takes one of" in capsys.readouterr().err

    def test_it_prints_the_schema(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert program.run(["settings", "schema"]) == 0
        assert json.loads(capsys.readouterr().out) == build_settings_schema()

    def test_notes_are_said_once(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        _user({"nope": 1})
        assert program.run(["-C", str(tmp_path), "serve", "--print-config", "codex"]) == 0
        assert capsys.readouterr().err.count("no setting 'nope'") == 1


# -- messages ---------------------------------------------------------------------------------


def _texts(word: str, package: str = "") -> Iterator[tuple[str, str]]:
    """List the texts of the modules that hold a word; the parts of a text that has values in it are joined."""
    for path in sorted((_SOURCE / package).rglob("*.py")):
        source = path.read_text("utf-8")
        for node in ast.walk(ast.parse(source)) if word in source else ():
            if isinstance(node, ast.JoinedStr):
                parts = [one.value if isinstance(one, ast.Constant) else "{}" for one in node.values]
                yield str(path.relative_to(_SOURCE)), "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield str(path.relative_to(_SOURCE)), node.value


def test_finding_b9_every_message_that_advises_a_setting_names_one_that_exists() -> None:
    advised: set[str] = set()
    for path, text in _texts("setting"):
        for key in re.findall(r"\bsettings? `([^`]+)`", text):
            assert key in SETTINGS, f"{path} advises {key!r}: {text}"
            advised.add(key)
        assert not re.search(r"settings' `", text), f"{path} advises settings of nobody: {text}"
    assert {"web.ports", "web.allow_private", "search.searxng_url"} <= advised


def test_finding_b9_every_flag_that_a_tool_advises_exists() -> None:
    known = {spec.name for spec in flag_specs()}
    advised = {
        flag
        for place in ("indusagi/net", "indusagi/capabilities/web")
        for _, text in _texts("with ", place)
        for flag in re.findall(r"with (--[a-z-]+)", text)
    }
    assert advised == {"--web-allow"}
    assert advised <= known


def test_a_project_can_require_more_addons_and_no_fewer(tmp_path: Path) -> None:
    _user({"addons.required": ["audit"]})
    _project(tmp_path, {"addons": {"required": ["scanner", "audit"]}})
    assert load_settings(str(tmp_path), os.environ).get(ADDONS_REQUIRED) == ("audit", "scanner")
    _project(tmp_path, {"addons.required": []})
    assert load_settings(str(tmp_path), os.environ).get(ADDONS_REQUIRED) == ("audit",)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["model.name", "openai:gpt-5"], {"model.name": "openai:gpt-5"}),
        (["model.name", "5"], {"model.name": "5"}),
        (["web.ports", "80", "443"], {"web.ports": [80, 443]}),
        (["web.ports", "[80]"], {"web.ports": [80]}),
        (["addons.required", "audit"], {"addons.required": ["audit"]}),
        (["session.vi", "true"], {"session.vi": True}),
        (["approvals.notify", "notify-send", "indus"], {"approvals.notify": ["notify-send", "indus"]}),
    ],
)
def test_setting_is_set_with_the_type_it_takes(words: list[str], expected: dict[str, Any]) -> None:
    assert program.run(["settings", "set", *words]) == 0
    assert json.loads(Path(user_settings_path(os.environ)).read_text("utf-8")) == expected


def test_setting_keeps_the_rest_of_the_file_and_its_nesting(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(user_settings_path(os.environ))
    path.parent.mkdir(parents=True)
    before = '{\n  // mine\n  "web": {"max_bytes": 2048}, "hooks": {}\n}\n'
    path.write_text(before, "utf-8")
    assert program.run(["settings", "set", "web.max_bytes", "4096"]) == 0
    assert path.read_text("utf-8") == before.replace("2048", "4096")
    assert program.run(["settings", "set", "calls.record", "off"]) == 0
    assert program.run(["settings", "unset", "calls.record"]) == 0
    assert program.run(["settings", "unset", "web.max_bytes"]) == 0
    assert json.loads(path.read_text("utf-8").replace("// mine", "")) == {"web": {}, "hooks": {}}
    assert "// mine" in path.read_text("utf-8")
    capsys.readouterr()
    assert program.run(["settings", "unset", "web.max_bytes"]) == 2
    assert "doesn't set web.max_bytes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["web.max_bytes", "5"], "web.max_bytes takes a whole number from 1,024 to"),
        (["sandbox", "maybe"], "sandbox takes one of auto, required, off, not maybe"),
        (["sandbx", "off"], "There is no setting 'sandbx'. Did you mean 'sandbox'?"),
        (["model.name", "${keyring:KEY}"], "takes no reference to a secret"),
        (["--project", "session.vi", "true"], "A project can't set session.vi"),
    ],
)
def test_wrong_setting_changes_nothing(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["settings", "set", *words]) == 2
    assert message in capsys.readouterr().err
    assert not os.path.exists(user_settings_path(os.environ))


def test_damaged_file_of_settings_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(user_settings_path(os.environ))
    path.parent.mkdir(parents=True)
    path.write_text("{", "utf-8")
    assert program.run(["settings", "set", "sandbox", "off"]) == 2
    assert "correct it first" in capsys.readouterr().err
    assert path.read_text("utf-8") == "{"


def test_setting_of_the_project_is_written_there_and_names_what_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert program.run(["settings", "set", "--project", "web.max_bytes", "4096"]) == 0
    assert json.loads(Path(project_settings_path(str(tmp_path))).read_text("utf-8")) == {"web.max_bytes": 4096}
    assert program.run(["settings", "set", "web.max_bytes", "8192"]) == 0
    assert "web.max_bytes is set by: project" in capsys.readouterr().err
