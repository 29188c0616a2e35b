"""The quickstart's results, made once: nothing in these tests writes into them."""

from __future__ import annotations

import pytest
from made_results import quickstart_in

from paribus.plan.design import Plan
from paribus.record.store import Store


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Store]:
    return quickstart_in(tmp_path_factory.mktemp("quickstart"))
