"""What was typed before the session listens."""

from __future__ import annotations

import os

from induscode.frontends.terminal.devices import read_typed_ahead


def test_lines_are_read_and_empty_ones_left_out() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, "one\n \ntwö\n".encode())
        assert read_typed_ahead(reading) == ["one", "twö"]
        assert read_typed_ahead(reading) == []
    finally:
        os.close(reading)
        os.close(writing)


def test_nothing_was_typed_on_a_terminal_that_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    assert read_typed_ahead(reading) == []
