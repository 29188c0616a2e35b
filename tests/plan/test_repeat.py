"""How many repeats a study may ask for, and what an adaptive one must say."""

import pytest
import studies

from paribus.errors import StudyError
from paribus.plan.reading import parse_study
from paribus.plan.study import Study
from paribus.statistics.sequential import Looks


def read(repeat: str, compare: str = "{metric: test.same_wording.loss, margin: 0.02}") -> Study:
    lines = studies.short("vary: {neftune_noise_alpha: [0, 5]}", f"compare: {compare}")
    return parse_study(lines.replace("{seeds: [0, 1]}", repeat))


@pytest.mark.parametrize("seeds", ["3..20", "'3 .. 20'", "{min: 3, max: 20}"])
def test_a_range_is_the_first_seeds_of_all_that_may_be_run(seeds):
    repeat = read(f"{{until: decided, seeds: {seeds}}}").repeat
    assert repeat.seeds == tuple(range(20)) and repeat.looks == Looks(3, 20)


def test_listed_seeds_have_no_looks():
    assert read("{seeds: [0, 1]}").repeat.looks is None


def test_how_often_is_in_no_id():
    listed, adaptive = (
        studies.plan(studies.short("compare: {metric: test.same_wording.loss, margin: 0.02}").replace(
            "{seeds: [0, 1]}", repeat))
        for repeat in ("{seeds: [0, 1, 2, 3]}", "{until: decided, seeds: 3..4}")
    )  # fmt: skip
    assert [job.trial_id for job in listed.jobs] == [job.trial_id for job in adaptive.jobs]


BAD = {
    "upside down": ("seeds: 20..3", "20 to 3 leave nothing to add", "`seeds: 3..20`"),
    "nothing to add": ("seeds: 5..5", "5 to 5 leave nothing to add", "`seeds: 5..20`"),
    "below the least": ("seeds: 3..2", "3 to 2 leave nothing to add", "`seeds: 3..20`"),
    "too few": ("seeds: 1..5", "1 seed to begin with are too few for an interval", "`seeds: 3..5`"),
    "none": ("seeds: {min: 0, max: 2}", "too few for an interval", "`seeds: 3..4`"),
    "too many": ("seeds: 3..5000", "5000 seeds are more than the 200", "`seeds: 3..200`"),
    "a list": ("seeds: [0, 1, 2]", "must be from how many to how many, not a list", "3..20"),
    "half a range": ("seeds: 3..", "from how many to how many, not the word '3..'", "3..20"),
    "a fraction": ("seeds: {min: 3, max: 4.5}", "from how many to how many, not a block", "3..20"),
    "yes": ("seeds: {min: true, max: 5}", "from how many to how many, not a block", "3..20"),
    "one end": ("seeds: {min: 3}", "from how many to how many, not a block", "3..20"),
    "no seeds": ("", "from how many to how many, not nothing", "3..20"),
    "its own word": ("seeds: 3..5, least: 3", "unknown key 'least' in repeat", "until"),
}


@pytest.mark.parametrize(("seeds", "message", "way_out"), BAD.values(), ids=BAD)
def test_a_range_that_cannot_be_is_named_with_a_way_out(seeds, message, way_out):
    with pytest.raises(StudyError) as caught:
        read(f"{{until: decided, {seeds}}}")
    assert message in caught.value.message and way_out in (caught.value.way_out or "")
    assert "\n" not in (caught.value.way_out or ""), "one mistake is one problem"
    assert caught.value.place and caught.value.place.line == 6


@pytest.mark.parametrize(("until", "message"), [("best", "the word 'best'"), ("null", "nothing")])
def test_until_has_one_word(until, message):
    with pytest.raises(StudyError, match=f"until must be decided, not {message}"):
        read(f"{{until: {until}, seeds: 3..20}}")


@pytest.mark.parametrize("seeds", ["3..20", "{min: 3, max: 20}"])
def test_a_range_needs_until(seeds):
    with pytest.raises(StudyError, match="ends when all is decided") as caught:
        read(f"{{seeds: {seeds}}}")
    assert "until: decided" in (caught.value.way_out or "")


@pytest.mark.parametrize(
    ("compare", "message"),
    [
        ("{metric: test.same_wording.loss}", "must declare compare.margin"),
        ("{margin: 0.02}", "must declare compare.metric"),
        ("{metric: test.same_wording.loss, margin: 0.1, at: equal_train_loss}", "moves with every seed"),
        (
            "{metric: test.same_wording.loss, margin: 1, estimand: new_seeds_and_items}",
            "cannot speak of new items",
        ),
    ],
)
def test_what_decides_is_declared_and_stands_still(compare, message):
    with pytest.raises(StudyError, match=message):
        read("{until: decided, seeds: 3..20}", compare)


def test_an_included_cell_may_take_some_of_the_seeds_of_a_range():
    text = studies.short(
        "compare: {metric: test.same_wording.loss, margin: 0.02}",
        "include: [{neftune_noise_alpha: 5, seeds: [0]}]",
    )
    plan = studies.plan(text.replace("{seeds: [0, 1]}", "{until: decided, seeds: 3..6}"))
    assert [len(cell.trials) for cell in plan.cells] == [6, 1]
