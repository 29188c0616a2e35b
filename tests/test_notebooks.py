"""Notebooks: what their pages hold, that they ask for nothing, and that a failing cell is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paribus.cli import app
from paribus.compare.notebook import Board
from paribus.errors import ParibusError

ROOT = Path(__file__).parents[1]
RUNNER = CliRunner()
HEAD = '# %% [markdown]\n# # A title\n\n# %% tags=["parameters"]\nstudy = "none"\nmargin = None\n\n# %%\n'

pytestmark = pytest.mark.filterwarnings("default")


def notebooks(tmp_path: Path, *options: str) -> tuple[int, str, str]:
    """Run the notebooks of a folder; return the exit status, what was printed, and the first page."""
    given = ["notebooks", "--analysis", str(tmp_path), "--to", str(tmp_path / "pages"), *options]
    done = RUNNER.invoke(app, given)
    pages = sorted((tmp_path / "pages").glob("*.html"))
    return done.exit_code, done.output, pages[0].read_text("utf-8") if pages else ""


def test_a_page_holds_what_cells_show_and_asks_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(HEAD + "print(6 * 7, study)\n")
    status, _, page = notebooks(tmp_path, "--study", "another")
    assert status == 0
    assert "42 another" in page
    assert "<title>A title</title>" in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)
    assert "default-src 'none'" in page


def test_a_failing_cell_is_named_and_ends_in_exit_1_with_the_page_so_far(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(HEAD + "print('so far')\n\n# %%\n1 / 0\n")
    status, said, page = notebooks(tmp_path)
    assert status == 1
    assert "ZeroDivisionError" in said
    assert "so far" in page


def test_an_unknown_notebook_is_an_error_with_the_nearest_name() -> None:
    done = RUNNER.invoke(app, ["notebooks", "02_overfiting", "--analysis", str(ROOT / "analysis")])
    assert isinstance(done.exception, ParibusError)
    assert "02_overfitting" in done.exception.way_out


def test_a_study_without_results_says_how_to_get_them(tmp_path: Path) -> None:
    board = Board("quickstart", ROOT / "experiments", tmp_path)
    for piece in (board.answer(), board.table("comparison"), board.forest(), board.curves()):
        assert "paribus run" in piece.body


def test_other_rules_change_the_verdict_and_are_said() -> None:
    folders = (ROOT / "experiments", ROOT / "results/reference")
    wide = Board("neftune_alpha", *folders, margin=0.5)
    assert wide.findings is not None
    assert wide.findings.rules.margin == 0.5
    assert "margin 0.5, not as the study declared" in wide.answer().body
    own = Board("neftune_alpha", *folders)
    assert "not as the study declared" not in own.answer().body


def test_an_unknown_table_is_an_error_with_the_nearest_name() -> None:
    board = Board("quickstart", ROOT / "experiments", ROOT / "results/reference")
    with pytest.raises(ParibusError, match="comparson") as error:
        board.table("comparson")
    assert "comparison" in (error.value.way_out or "")


def test_every_claim_stands_in_a_notebook() -> None:
    shown = {
        name
        for path in (ROOT / "analysis").glob("*.py")
        for name in re.findall(r'"([AB]\d\d)"', path.read_text("utf-8"))
    }
    assert shown == {f"A{i:02d}" for i in range(1, 94)} | {f"B{i:02d}" for i in range(1, 58)}


def test_rules_that_cannot_be_are_an_error_that_names_them() -> None:
    board = Board("quickstart", ROOT / "experiments", ROOT / "results/reference", margin=-1)
    with pytest.raises(ParibusError, match="margin cannot be -1"):
        board.answer()
