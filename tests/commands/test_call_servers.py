"""`indus call`: wrong arguments, data that is saved, servers that stand in no configuration."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.commands.helpers import HONEST, configured, one_line, row, user_file
from tests.commands.serving import serving
from tests.support.scripts import run

from indusagi.runtime.contract import JsonContentBlock, TextContentBlock
from induscode.commands.call_data import describe_parameters, save_blocks, summarize_block

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

COMMAND = shlex.join(HONEST)


@pytest.mark.process
def test_finding_b11_a_wrong_argument_is_told_with_the_signature_before_the_server_gets_it(tmp_path: Path) -> None:
    configured(user_file(), {"s": row()})
    one_line(run("call", "s__add", "a=1", "b=x", cwd=tmp_path), "'b' must be number", "It takes: a")
    words = ("--json", '{"a": "one", "b": 2}')
    one_line(run("call", "s__add", *words, cwd=tmp_path), "a", "number", "It takes: a?: number")


@pytest.mark.process
@pytest.mark.parametrize("words", [("read",), ("grep", "pattern=x", "nope=1"), ("write", "--json", '{"path": 1}')])
def test_finding_b11_a_wrong_argument_of_a_native_tool_is_told_with_its_signature(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run("call", *words, cwd=tmp_path)
    one_line(done, "It takes: pa")
    assert done.stderr.count("It takes") == 1


@pytest.mark.parametrize(
    ("mime", "suffix"),
    [
        ("audio/wav", ".wav"),
        ("image/webp", ".webp"),
        ("IMAGE/PNG", ".png"),
        ("text/csv; charset=utf-8", ".csv"),
        ("x/unknown", ".bin"),
    ],
)
def test_finding_b11_a_saved_file_has_the_suffix_of_its_media_type(tmp_path: Path, mime: str, suffix: str) -> None:
    block = JsonContentBlock({"type": "resource", "resource": {"blob": "aGk=", "mimeType": mime}})
    (path,) = save_blocks([block], str(tmp_path), "t")
    assert path.endswith(f"t-1{suffix}")


@pytest.mark.process
def test_finding_b11_the_text_of_an_embedded_resource_is_printed(tmp_path: Path) -> None:
    done = run("call", "--stdio", COMMAND, "media", cwd=tmp_path)
    assert "[resource, test://text, 5 characters]\ninner\n" in done.stdout


@pytest.mark.process
def test_finding_b11_pictures_are_saved_beside_those_there_are(tmp_path: Path) -> None:
    words = ("call", "--stdio", COMMAND, "media", "--save", "out")
    assert run(*words, cwd=tmp_path).returncode == 0
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 0
    pictures = sorted((tmp_path / "out").glob("*.png"))
    assert len(pictures) == 4
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert done.stderr.count("saved out/") == 4
    (tmp_path / "file").touch()
    refused = run("call", "--stdio", COMMAND, "media", "--save", "file", cwd=tmp_path)
    assert refused.returncode == 1
    assert "--save file: File exists" in refused.stderr


@pytest.mark.process
def test_finding_b11_a_server_on_the_command_line_is_called_and_not_configured(tmp_path: Path) -> None:
    done = run("call", "--stdio", COMMAND, "echo", "text=hi", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi\n", "")
    assert "No servers are configured" in run("mcp", "list", cwd=tmp_path).stdout
    missing = run("call", "--stdio", COMMAND, "ecoh", cwd=tmp_path)
    one_line(missing, "the server has no tool 'ecoh'", "'echo'")
    failed = run("call", "--stdio", "sh -c 'exit 3'", "echo", cwd=tmp_path)
    one_line(failed, "the server: ", "exited with code 3", code=3)


@pytest.mark.process
def test_messages_about_a_server_at_a_url_name_the_url_and_no_id_that_was_made_up(tmp_path: Path) -> None:
    configured(user_file(), {"honest": row()})
    with serving("--http", "127.0.0.1:0", cwd=tmp_path) as gateway:
        gateway.until(lambda: "native tools" in gateway.said())
        found = re.search(r"serving at (\S+)", gateway.said())
        assert found is not None
        url, token = found[1], (Path(os.environ["HOME"]) / ".local/state/indus/serve-token").read_text("utf-8").strip()
        refused = run("call", "--url", url, "honest__echo", "text=a", cwd=tmp_path)
        one_line(refused, f"the server at {url}: ", "-H 'Authorization: Bearer TOKEN'", code=3)
        words = ("call", "--url", url, "-H", f"Authorization: Bearer {token}")
        done = run(*words, "honest__echo", "text=a", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "a\n"), done.stderr
        invalid = run(*words, "honest__add", "a=1", "b=x", cwd=tmp_path)
        one_line(invalid, "indus: honest__add: 'b' must be number")
        failed = run(*words, "honest__fail", cwd=tmp_path)
        assert failed.stderr == "indus: honest__fail answered with an error (its own)\n"
    closed = run(*words, "honest__echo", "text=a", cwd=tmp_path)
    one_line(closed, f"the server at {url} is faulted: ", "could not be reached", code=3)
    for said in (refused, invalid, failed, closed):
        assert "127-0-0-1" not in said.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--stdio", "x", "--url", "http://h/"], ["either --stdio COMMAND or --url URL"]),
        (["-H", "a: b"], ["either --stdio COMMAND or --url URL"]),
        (["--stdio", ""], ["takes the command"]),
        (["--stdio", "a 'b"], ["No closing quotation"]),
        (["--url", "nowhere"], ["nowhere"]),
        (["--stdio", "x", "-H", "a: b"], ["-H is for a URL"]),
        (["--stdio", "x", "--mcp", "."], ["--mcp has no effect"]),
    ],
)
def test_a_server_that_cannot_be_meant_is_told(tmp_path: Path, words: list[str], parts: list[str]) -> None:
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {}}', encoding="utf-8")
    done = run("call", *words, "echo", cwd=tmp_path)
    assert done.returncode in {2, 3}
    assert all(part in done.stderr for part in parts), done.stderr


@pytest.mark.process
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_finding_b11_doctor_names_the_server_in_both_eras(tmp_path: Path, era: str) -> None:
    configured(user_file(), {"s": row("--era", era)})
    found = json.loads(run("mcp", "doctor", "--json", cwd=tmp_path).stdout)
    assert found["servers"][0]["server"].split()[0]
    assert found["servers"][0]["era"] == era


def test_data_that_is_not_base64_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [
        TextContentBlock("words"),
        JsonContentBlock({"type": "image", "data": "?", "mimeType": "image/png"}),
        JsonContentBlock({"type": "resource", "resource": {"uri": "a", "text": "inner"}}),
        JsonContentBlock([1]),
    ]
    paths = save_blocks(blocks, str(tmp_path), "../a b")
    assert [path.rpartition("/")[2] for path in paths] == ["___a_b-1.txt"]
    assert "not valid base64" in capsys.readouterr().err


@given(st.binary(max_size=50))
def test_a_block_is_summarized_with_its_size(data: bytes) -> None:
    value: JsonValue = {"type": "blob", "data": base64.b64encode(data).decode()}
    assert summarize_block(value) == f"[blob, {len(data):,} bytes]"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "no arguments"),
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, "a: string"),
        ({"properties": {"a": {"type": ["integer", "null"]}, "b": True}}, "a?: integer|null, b?"),
    ],
)
def test_a_signature_names_types_and_what_may_be_left_out(schema: dict[str, JsonValue], text: str) -> None:
    assert describe_parameters(schema) == text
