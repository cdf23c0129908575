"""The broker that the tests of one module share; each cluster on it has a prefix of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.broker import broker_process

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.support.broker import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess]:
    """Run a broker for the tests of a module."""
    with broker_process(tmp_path_factory.mktemp("broker")) as process:
        yield process
