"""What is made of the words of the conformance suite, and of what it finds."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest
from outside.conformance import cells, sign_in_table
from outside.conformance.servers import Judged, table
from outside.conformance.subjects import Subject, subjects
from outside.conformance.suite import Verdict, read_results, scenario_of, scenarios_in, weigh
from outside.remote import NotListening, listening

if TYPE_CHECKING:
    from pathlib import Path

    from indusagi.core.json import JsonObject

LISTED = """Server scenarios (test against a server):
  - server-initialize [2025-06-18,2025-11-25]
  - ping [2025-06-18,2025-11-25]
"""
NEW, OLD = "2026-07-28", "2025-11-25"
BOX = Subject("box", ("true",), left_out={"prompts-list": "it has no prompts"})
OFFERS_LITTLE = Subject("deck", ("true",), only=frozenset({"ping"}))


def check(status: str, name: str = "a-check", said: str = "") -> JsonObject:
    return {"id": name, "status": status, "description": "what it is about", "errorMessage": said}


def weighed(*checks: JsonObject, **reasons: str) -> Verdict:
    verdict = Verdict(NEW, "ping")
    weigh([*checks], verdict, reasons.get)
    return verdict


def test_the_scenarios_are_those_that_the_suite_lists() -> None:
    assert scenarios_in(LISTED) == ["server-initialize", "ping"]


@pytest.mark.parametrize(
    ("folder", "scenario"),
    [
        ("server-ping-2026-11-16T02-29-40-871Z", "ping"),
        ("server-server-sse-polling-2026-11-16T02-29-40-871Z", "server-sse-polling"),
        ("server-json-schema-2020-12-2026-11-16T02-29-40-871Z", "json-schema-2020-12"),
        ("client-ping-2026-11-16T02-29-40-871Z", None),
        ("server-ping", None),
    ],
)
def test_a_folder_of_results_names_its_scenario(folder: str, scenario: str | None) -> None:
    assert scenario_of(folder) == scenario


def test_what_the_suite_only_tells_or_skips_counts_neither_way() -> None:
    verdict = weighed(check("SUCCESS"), check("INFO"), check("SKIPPED"))

    assert (verdict.passed, verdict.failed, verdict.wrong) == (1, 0, [])


@pytest.mark.parametrize("status", ["FAILURE", "WARNING"])
def test_a_failure_and_a_warning_are_told_with_the_words_of_the_suite(status: str) -> None:
    verdict = weighed(check("SUCCESS"), check(status, "sent", "nothing was sent"))

    assert (verdict.failed, verdict.wrong) == (1, ["sent: nothing was sent"])


def test_a_check_without_a_message_is_told_by_what_it_is_about() -> None:
    assert weighed(check("FAILURE", "sent")).wrong == ["sent: what it is about"]


def test_a_check_that_may_fail_is_no_failure_and_is_remembered() -> None:
    verdict = weighed(check("SUCCESS"), check("FAILURE", "logs"), logs="it has no log")

    assert (verdict.failed, verdict.wrong, verdict.excepted) == (0, [], ["logs"])


@pytest.mark.parametrize("checks", [[], [check("INFO")], [check("SKIPPED")]])
def test_a_scenario_in_which_nothing_was_judged_is_wrong(checks: list[JsonObject]) -> None:
    assert weighed(*checks).wrong == ["the suite found nothing to judge"]


def test_a_scenario_without_results_is_wrong_with_the_last_words_of_the_suite(tmp_path: Path) -> None:
    results = tmp_path / "server-ping-2026-11-16T02-29-40-871Z"
    results.mkdir()
    (results / "checks.json").write_text(json.dumps([check("SUCCESS")]), "utf-8")

    ping, listing = read_results(tmp_path, NEW, ["ping", "tools-list"], BOX.may_fail.get, "it broke")

    assert (ping.passed, ping.wrong) == (1, [])
    assert listing.wrong == ["the suite left no results: it broke"]


def test_results_that_are_no_list_are_wrong() -> None:
    verdict = Verdict(NEW, "ping")
    weigh({"checks": []}, verdict)

    assert verdict.wrong == ["the suite found nothing to judge"]


def test_a_failed_scenario_of_the_client_stands_out_in_its_row() -> None:
    assert cells(Verdict(OLD, "ping", 2)) == (OLD, "ping", "2", "0", "ok")
    assert cells(Verdict(OLD, "ping", 2, 1, ["no"])) == (OLD, "ping", "2", "1", "FAILED")


def test_what_a_server_does_not_offer_is_no_failure() -> None:
    judge_client = Judged(BOX, [Verdict(NEW, "prompts-list", 1, 1, ["prompts-list: no prompts"])])

    assert judge_client.failed == []
    assert judge_client.cell(judge_client.verdicts[0]) == "not offered"


def test_a_scenario_that_passes_must_not_be_left_out() -> None:
    judge_client = Judged(BOX, [Verdict(NEW, "prompts-list", 2)])

    assert judge_client.failed == ["box, 2026-07-28, prompts-list: it passes, yet it is left out: it has no prompts"]


def test_a_reason_that_nothing_needs_is_stale() -> None:
    subject = Subject("box", (), {"gone": "never was"}, {"a-check": "it has no log"})
    used = Judged(subject, [Verdict(NEW, "gone"), Verdict(NEW, "ping", 1, excepted=["a-check"])])

    assert used.stale == []
    assert Judged(subject, [Verdict(NEW, "ping", 1)]).stale == [
        "box: gone need not be left out",
        "box: a-check need not be left out",
    ]


def test_a_server_that_offers_little_is_judged_by_that_alone() -> None:
    verdicts = [Verdict(NEW, "ping", 2, 1, ["ping: late"]), Verdict(NEW, "tools-list", 3)]

    assert Judged(OFFERS_LITTLE, verdicts).failed == ["deck, 2026-07-28, ping: ping: late"]


def test_a_server_that_does_not_run_is_a_failure() -> None:
    assert Judged(BOX, wrong=["it ended with 2"]).failed == ["box: it ended with 2"]


def test_the_table_has_a_row_for_each_scenario_and_a_column_for_each_server() -> None:
    direct = Judged(Subject("direct", ()), [Verdict(OLD, "ping", 2), Verdict(NEW, "prompts-list", 2)])
    box = Judged(
        BOX,
        [Verdict(OLD, "ping", 1, 1, ["ping: late"]), Verdict(NEW, "prompts-list", 1, 1, ["prompts-list: no prompts"])],
    )
    broken = Judged(Subject("broken", ()), wrong=["it ended with 2"])

    assert table([direct, box, broken]) == [
        "| revision | scenario | direct | box | broken |",
        "|---|---|---|---|---|",
        "| 2025-11-25 | ping | 2 | 1, 1 failed | not run |",
        "| 2026-07-28 | prompts-list | 2 | not offered | not run |",
        "| 2025-11-25 | scenarios judged | 1 of 1 | 1 of 1 | 0 of 0 |",
        "| 2025-11-25 | checks passed | 2 of 2 | 1 of 2 | 0 of 0 |",
        "| 2026-07-28 | scenarios judged | 1 of 1 | 0 of 1 | 0 of 0 |",
        "| 2026-07-28 | checks passed | 2 of 2 | 0 of 0 | 0 of 0 |",
        "",
        "- box: it has no prompts: `prompts-list`.",
    ]


def test_checks_that_may_fail_are_listed_with_their_reason() -> None:
    subject = Subject("box", (), may_fail={"logs": "it has no log"})
    judge_client = Judged(subject, [Verdict(new, "ping", 1, excepted=["logs"]) for new in (OLD, NEW)])

    assert table([judge_client])[-1] == "- box: it has no log: `logs`."


def test_of_a_server_that_offers_little_only_that_much_is_said() -> None:
    assert table([Judged(OFFERS_LITTLE, [Verdict(NEW, "tools-list")])])[-1] == (
        "- deck: it has none of the tools that the suite calls: all scenarios without a number."
    )


def test_every_reason_is_a_sentence_and_every_server_takes_its_port(tmp_path: Path) -> None:
    for subject in subjects(tmp_path):
        assert any("{port}" in word for word in subject.command)
        assert all([*subject.left_out.values(), *subject.may_fail.values()])


async def test_a_command_that_ends_is_not_waited_for(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('no such port: {port}')")

    with pytest.raises(NotListening, match="it ended with 1"):
        async with listening(command, log=tmp_path / "log"):
            pass

    assert "no such port" in (tmp_path / "log").read_text("utf-8")


async def test_a_command_that_listens_runs_as_long_as_the_block(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1")

    async with listening(command, cwd=tmp_path) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    with pytest.raises(OSError, match=str(port)):
        await asyncio.open_connection("127.0.0.1", port)


def test_signing_in_has_a_column_per_revision_and_sums() -> None:
    verdicts = [
        Verdict(OLD, "auth/one", passed=3),
        Verdict(NEW, "auth/one", passed=2, failed=1, wrong=["x"]),
        Verdict("extension", "auth/two", wrong=["the suite left no results"]),
    ]
    table = sign_in_table(verdicts)
    assert table[2:] == [
        "| one |  | 3 of 3 | 2 of 3 |  |",
        "| two |  |  |  | 0 of 1 |",
        "| **checks** | 0 of 0 | 3 of 3 | 2 of 3 | 0 of 1 |",
        "| **scenarios** | 0 of 0 | 1 of 1 | 0 of 1 | 0 of 1 |",
        "",
        "1 of 3 runs, 5 of 7 checks.",
    ]
