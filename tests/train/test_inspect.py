"""`paribus data` counts what goes wrong unseen and shows what is learnt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paribus.embedded import BASE
from paribus.errors import DataError
from paribus.plan.study import Study
from paribus.train.inspect import Inspection, inspect, show

STUDY = """\
paribus: 1
name: look
model: {source: embedded}
data: {source: files, train: train.jsonl, test: test.jsonl, validation: validation.jsonl%s}
training: {effective_batch_size: 2, epochs: 1, max_length: %d}
vary: {neftune_noise_alpha: [0, 5]}
repeat: {seeds: [0]}
compare: {metric: test.all.loss}
"""


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Inspection]:
    """Inspect a study of the given rows."""
    monkeypatch.setenv("PARIBUS_CACHE", str(tmp_path / "cache"))

    def at(max_length: int = 128, more: str = "", **splits: list[tuple[str, str]]) -> Inspection:
        for split, pairs in splits.items():
            rows = [json.dumps({"prompt": asked, "completion": answered}) for asked, answered in pairs]
            (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
        (tmp_path / "study.yaml").write_text(STUDY % (more, max_length))
        return inspect(Study.read(tmp_path))

    return at


ROWS: dict[str, Any] = {
    "train": [("say red", "red"), ("say blue and red", "blue and red"), ("say red", "red")],
    "validation": [("say old", "old")],
    "test": [("say red", "it is red"), ("say new", "new")],
}


def printed(inspection: Inspection, width: int = 80) -> str:
    file = StringIO()
    show(inspection, Console(file=file, width=width))
    return file.getvalue()


def test_counts(looked: Callable[..., Inspection]) -> None:
    found = looked(**ROWS)
    train, validation, test = found.lengths
    assert (train.examples, train.duplicates, train.truncated, train.without_end) == (3, 1, 0, 0)
    assert (validation.split, validation.group, test.examples) == ("validation", "all", 2)
    assert train.quantiles[0] <= train.quantiles[3] <= train.quantiles[-1]
    assert [(pair.first, pair.second, pair.shared) for pair in found.overlap] == [
        ("train", "validation", 0),
        ("train", "test", 1),
        ("validation", "test", 0),
    ]
    assert found.end_tokens == ("<eos>",)
    assert found.advice == (
        "1 of 3 in train repeat an earlier one.",
        "1 of 2 prompts of test are in train too, such as 'say red': scores there measure memory too. "
        "Remove them from one of the two.",
    )


def test_the_cut(looked: Callable[..., Inspection]) -> None:
    longest = looked(**ROWS).lengths[0].quantiles[-1]
    train = looked(longest - 1, **ROWS).lengths[0]
    assert (train.truncated, train.without_end, train.without_targets) == (1, 1, 0)
    found = looked(6, **ROWS)  # <bos> <user> say red <bot> red <eos>, and of the longer one its prompt alone
    assert (found.lengths[0].truncated, found.lengths[0].without_targets) == (3, 1)
    assert any(line.endswith(f"training.max_length {longest} would cut none.") for line in found.advice)
    assert any("1 of 3 in train lost every target by the cut" in line for line in found.advice)


def test_the_pieces_are_the_whole_text_and_its_fate(looked: Callable[..., Inspection]) -> None:
    found = looked(**ROWS)
    first = found.shown[0]
    assert "".join(piece.text for piece in first.pieces) == "<bos><user> say red<bot> red<eos>"
    learnt = [piece.text.strip() for piece in first.pieces if piece.fate == "learnt"]
    assert learnt == ["red<eos>"]
    longest = looked(found.lengths[0].quantiles[-1] - 1, **ROWS).shown[-1]
    assert longest.pieces[-1].fate == "cut"
    assert longest.pieces[-1].text.strip() == "<eos>"


def test_the_terminal_shows_the_mask_without_colours_within_80_columns(
    looked: Callable[..., Inspection],
) -> None:
    text = printed(looked(**ROWS))
    assert "⟦ red<eos>⟧" in text
    assert "prompts in two splits: train/validation 0 · train/test 1 · validation/test 0" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "✂" in printed(looked(8, **ROWS))


def test_all_well_is_said(looked: Callable[..., Inspection]) -> None:
    found = looked(train=[("say red", "red")], validation=[("say old", "old")], test=[("say new", "new")])
    assert found.advice == ()
    assert "no prompt is in two splits" in printed(found)


def test_a_length_beyond_the_context_is_named(looked: Callable[..., Inspection]) -> None:
    advice = looked(1000, **ROWS).advice
    assert advice[0] == "training.max_length 1000 is beyond the model's 256 tokens: lower it."


def test_the_json_form_has_these_keys(looked: Callable[..., Inspection]) -> None:
    document = looked(**ROWS).to_json()
    assert sorted(document) == [
        "advice",
        "context_length",
        "end_tokens",
        "lengths",
        "loss_on",
        "max_length",
        "overlap",
        "rendering",
        "shown",
        "study",
    ]
    assert sorted(document["shown"][0]) == ["example_id", "pieces", "targets", "tokens"]
    assert Inspection.model_validate(document) == looked(**ROWS)


def test_an_error_of_the_data_has_a_line_of_the_study(
    looked: Callable[..., Inspection], tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        looked(more=", columns: {promt: question}", **ROWS)
    assert str(caught.value).startswith(f"{tmp_path / 'study.yaml'}:4: data.columns names the field 'promt'")


def test_without_an_end_of_text_token_the_way_out_fits_the_rendering(tmp_path: Path) -> None:
    model = Path(shutil.copytree(BASE, tmp_path / "model"))
    settings = (model / "tokenizer_config.json").read_text()
    (model / "tokenizer_config.json").write_text(settings.replace('"eos_token"', '"was_eos_token"'))
    (tmp_path / "train.jsonl").write_text('{"text": "say a"}\n{"text": "say b"}\n{"text": "say c"}\n')
    block = "{source: files, train: train.jsonl, form: text}"
    study = STUDY.replace("{source: embedded}", "{source: path, path: model}") % ("", 128)
    study = study.replace(study.split("data: ")[1].split("\n")[0], block)
    (tmp_path / "study.yaml").write_text(study)
    (told, *_) = inspect(Study.read(tmp_path)).advice
    assert told.endswith(
        "will not learn to stop. Name the tokenizer's eos_token in its tokenizer_config.json."
    )


@pytest.mark.parametrize(
    ("task", "learnt", "shown"),
    [("classification", "label", "⟦animal⟧"), ("pretrain", "all", "t⟦urn the word far into its other side")],
)
def test_labels_are_shown_and_running_text_is_learnt_whole(
    task: str, learnt: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARIBUS_CACHE", str(tmp_path / "cache"))
    text = STUDY % ("", 64)
    start, end = text.index("data:"), text.index("training:")
    data = "source: embedded, train_examples: 12, validation_examples: 3, test_examples: 3"
    block = f"task: {task}\ndata: {{{data}}}\n"
    text = (text[:start] + block + text[end:]).replace("compare: {metric: test.all.loss}\n", "")
    (tmp_path / "study.yaml").write_text(text)
    found = inspect(Study.read(tmp_path))
    assert (found.rendering, found.loss_on, found.advice) == ("plain", learnt, ())
    assert shown in printed(found)
    assert sum(one.without_targets for one in found.lengths) == 0
    if task == "classification":
        assert all(one.targets == one.examples for one in found.lengths)
        assert "the label of" in printed(found)
