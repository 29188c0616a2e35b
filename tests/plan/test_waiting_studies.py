"""Studies that wait for a GPU or a large model: each is read, and the ledger names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paribus.compare.claim import read_claims
from paribus.compare.ledger import ledger
from paribus.errors import ModelError
from paribus.plan.design import expand
from paribus.plan.study import Study
from paribus.sources.blocks import HubData, HubModel

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
WAITING = sorted(path.name for kind in ("gpu", "large") for path in EXPERIMENTS.glob(f"{kind}_*"))


@pytest.mark.parametrize("name", WAITING)
def test_a_waiting_study_is_one_that_can_be_read(name: str) -> None:
    study = Study.read(EXPERIMENTS / name)
    assert study.name == name
    assert isinstance(study.model, HubModel)
    assert isinstance(study.data, HubData)
    assert len(study.repeat.seeds) >= 3
    assert "Hypotheses, written before any run" in (EXPERIMENTS / name / "README.md").read_text()


@pytest.mark.parametrize("name", WAITING)
def test_its_claims_are_the_rows_that_name_it(name: str) -> None:
    rows = {row.id: row for row in ledger().claims if name in row.ready}
    claims = {claim.id: claim for claim in read_claims(EXPERIMENTS / name).claims}
    assert claims.keys() == rows.keys()
    assert all(claims[one].says == rows[one].says for one in rows)


def test_every_study_that_a_row_waits_for_is_there() -> None:
    assert {name for row in ledger().claims for name in row.ready} == set(WAITING)


def test_without_the_hub_planning_ends_in_an_error_a_user_can_act_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(ModelError, match=r"Llama-2-7b-hf.*could not be fetched"):
        expand(Study.read(EXPERIMENTS / "gpu_precision"))
