"""What commands print about values, without running them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from induscode.cluster.broker import Storage
from induscode.cluster.contract import NodeInfo
from induscode.cluster.report import BrokerReport, BrokerView
from induscode.commands import cluster

ONE = NodeInfo(
    node="one",
    instance="i1",
    lease="l1",
    owned=2,
    capacity=9,
    sandboxes="standard docker",
    url="http://one",
    unpublished=3,
)
REPORT = BrokerReport(state="ready", brokers=[BrokerView(address="127.0.0.1:1", name="b1", took_s=0.01)], nodes=[ONE])


def print_status(report: BrokerReport, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> str:
    cluster._print_status(report, 40.0, as_json=as_json)
    return capsys.readouterr().out


def test_the_state_of_a_cluster_is_printed_with_its_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = print_status(replace(REPORT, storage=Storage(2_000_000, None)), capsys).splitlines()
    assert lines[0].startswith("brokers: ready; a lease lasts 40 s; storage: ")
    assert lines[1].split() == ["NODE", "SERVERS", "SANDBOXES", "UNPUBLISHED", "STATE", "ADDRESS"]
    assert (lines[2].split()[:5], lines[2].split()[-1], len(lines)) == (
        ["one", "2/9", "standard", "docker", "3"], "http://one", 3,
    )  # fmt: skip
    shown = json.loads(print_status(REPORT, capsys, as_json=True))
    assert (shown["lease_s"], shown["nodes"], shown["broker"]) == (40.0, [ONE.to_json()], "ready")


@pytest.mark.parametrize(
    ("change", "is_empty"),
    [
        ({"nodes": ()}, True),
        ({"nodes": (), "state": "slow"}, True),
        ({"nodes": (), "state": "away"}, False),
        ({"nodes": (), "silent": ["two"]}, False),
        ({"nodes": (), "waiting": [ONE]}, False),
        ({}, False),
    ],
)
def test_an_empty_cluster_is_told_how_to_start_a_node(
    change: dict[str, Any], is_empty: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ("no node is there: start one" in print_status(replace(REPORT, **change), capsys)) is is_empty


def test_problems_of_a_cluster_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    away = BrokerView(address="127.0.0.1:2", name="b2", reason="nothing listens there")
    report = replace(
        REPORT,
        brokers=[*REPORT.brokers, away],
        nodes=[ONE, replace(ONE, brokers="slow")],
        waiting=[replace(ONE, node="two"), replace(ONE, node="three", brokers="slow")],
        silent=["four"],
    )
    problems = report.list_problems()
    assert problems[0].startswith("broker ")
    assert "127.0.0.1:2" in problems[0]
    assert problems[1].startswith("node 'one' says: the brokers ")
    assert problems[2] == "node 'two' runs and has no lease"
    assert problems[3].startswith("node 'three' runs and has no lease: the brokers ")
    assert problems[4:] == [
        "node 'four' has a lease, and does not report itself: cut off, stopped, or just gone",
        "2 nodes are named 'one': stop all but one",
    ]
    printed = print_status(report, capsys)
    assert all(problem in printed for problem in problems)
    assert report.to_json()["offline"] == ["b2"]
