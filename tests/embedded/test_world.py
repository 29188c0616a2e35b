"""The laws of the embedded world: splits share nothing, and a call gives the same examples for ever."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError, asdict
from hashlib import sha256

import pytest

from paribus.embedded.world import (
    CLASSES,
    SKILLS,
    Example,
    Labelled,
    capacity,
    documents,
    examples,
    labelled,
    labelled_capacity,
    pretraining_document,
)

PLACES = [
    ("train", "same_wording"),
    ("validation", "same_wording"),
    ("validation", "new_wording"),
    ("test", "same_wording"),
    ("test", "new_wording"),
]
# Results recorded with these prompts are compared with later ones: a changed hash means a new data set.
FIRST_128_OF_TRAIN = "0016850da8c0121666ff84f76d0cfc9b5e1b064adf4d3a62f0b7eb93f166e7af"
# The shipped base has read this stream: with another one a rebuild would not lead to it.
FIRST_1000_DOCUMENTS = "30058d0718e891def254a0880781255d0bd02837ea5c35e0e3c75dd0215c132d"
ALL_DOCUMENTS = "6e422e034a50235541c0e303f488b214a54841ccc5f29be03a34d01a6e102998"


def digest(items: list[Example]) -> str:
    return sha256(json.dumps([asdict(item) for item in items], sort_keys=True).encode()).hexdigest()


def test_no_prompt_is_in_two_places_or_twice_in_one():
    prompts = [item.prompt for place in PLACES for item in examples(*place, capacity(*place))]
    assert len(prompts) == len(set(prompts)) > 10_000


def test_no_question_is_in_two_splits_in_another_wording():
    everything = {place: examples(*place, capacity(*place)) for place in PLACES}
    words = {
        item.answer for items in everything.values() for item in items if item.skill in ("first", "opposite")
    }
    asked = {split: set() for split, _ in PLACES}
    for (split, _), items in everything.items():
        asked[split] |= {question(item, words) for item in items}
    assert min(len(questions) for questions in asked.values()) > 300
    assert not asked["train"] & asked["validation"]
    assert not asked["train"] & asked["test"]
    assert not asked["validation"] & asked["test"]


def question(item: Example, words: set[str]) -> tuple[str, ...]:
    """What is asked, without the wording: numbers in either order, an opposite with its answer."""
    about = [word for word in item.prompt.split() if word in words or word.isdigit()]
    if item.skill == "opposite":
        about = sorted({*about, item.answer})
    return (item.skill, *(sorted(about) if item.skill in ("add", "larger") else about))


@pytest.mark.parametrize(("split", "group"), PLACES)
def test_a_longer_list_begins_with_the_shorter_one(split, group):
    assert examples(split, group, 128)[:64] == examples(split, group, 64)


@pytest.mark.parametrize(("split", "group"), PLACES)
def test_the_skills_come_in_turn(split, group):
    assert [item.skill for item in examples(split, group, 64)] == [SKILLS[k % len(SKILLS)] for k in range(64)]


@pytest.mark.parametrize(("split", "group"), PLACES)
def test_the_answer_ends_the_completion(split, group):
    assert all(item.completion.endswith(item.answer) for item in examples(split, group, 256))


def test_the_first_128_training_examples_never_change():
    assert digest(examples("train", "same_wording", 128)) == FIRST_128_OF_TRAIN


def test_the_pretraining_stream_never_changes():
    draw = random.Random("stream")
    documents = json.dumps([pretraining_document(draw) for _ in range(1000)])
    assert sha256(documents.encode()).hexdigest() == FIRST_1000_DOCUMENTS


def test_another_hash_seed_gives_the_same_examples_and_needs_no_torch():
    program = (
        "import sys, json; from paribus.embedded.world import examples;"
        "print(json.dumps([e.prompt for e in examples('test', 'new_wording', 64)]), 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    answer = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    expected = json.dumps([item.prompt for item in examples("test", "new_wording", 64)])
    assert answer.stdout.decode().strip() == f"{expected} False"


def test_wordings_differ_between_the_groups():
    same, new = (examples("validation", group, 256) for group in ("same_wording", "new_wording"))
    assert not {item.prompt for item in same} & {item.prompt for item in new}


def test_more_examples_than_there_are_is_an_error_that_names_the_most():
    most = capacity("test", "same_wording")
    assert len(examples("test", "same_wording", most)) == most
    with pytest.raises(
        ValueError, match=rf"has {most} different prompts in test same_wording.*Ask for 0 to {most}"
    ):
        examples("test", "same_wording", most + 1)


def test_training_has_no_new_wording():
    with pytest.raises(ValueError, match="train split has only same_wording"):
        examples("train", "new_wording", 1)


def test_an_unknown_split_is_an_error_that_lists_the_known_ones():
    with pytest.raises(
        ValueError, match=r"no 'dev' 'same_wording': a split is one of \('train', 'validation', 'test'\)"
    ):
        examples("dev", "same_wording", 1)


def test_examples_are_frozen():
    with pytest.raises(FrozenInstanceError):
        examples("train", "same_wording", 1)[0].prompt = "other"


def test_labelled_prompts_are_balanced_and_asked_in_one_split_alone():
    """A labelled prompt is an instruction of the same split and group with the class of its answer."""
    for split, group in PLACES:
        instructions = {item.prompt: item for item in examples(split, group, capacity(split, group))}
        found = labelled(split, group, 300)
        known = [(item, instructions[item.prompt]) for item in found if item.prompt in instructions]
        assert len(known) > 30
        assert {one.skill for _, one in known} == {"first", "last"}
        assert len({(one.answer, item.label) for item, one in known}) == len({one.answer for _, one in known})
        assert Counter(item.label for item in found) == dict.fromkeys(CLASSES, 100)
        assert labelled(split, group, 30) == found[:30]


def test_no_labelled_prompt_is_in_two_places_or_twice_in_one():
    prompts = [item.prompt for place in PLACES for item in labelled(*place, labelled_capacity(*place))]
    assert len(prompts) == len(set(prompts)) > 40_000


def test_the_label_is_what_the_word_is():
    assert labelled("train", "same_wording", 2) == [
        Labelled("please give the first item of frog sun sky donkey", "animal"),
        Labelled("so name the word at the end of stone coffee banana", "plant"),
    ]


def test_documents_are_split_by_their_hash_and_never_change():
    splits = {split: documents(split) for split in ("train", "validation", "test")}
    whole = [document for found in splits.values() for document in found]
    assert len(whole) == len(set(whole)) > 15_000
    assert splits["train"][:30] == documents("train", 30)
    shares = {split: len(found) / len(whole) for split, found in splits.items()}
    assert shares == pytest.approx({"train": 0.6, "validation": 0.2, "test": 0.2}, abs=0.02)
    assert sha256(json.dumps(whole).encode()).hexdigest() == ALL_DOCUMENTS


@pytest.mark.parametrize(
    ("made", "most"),
    [
        (lambda n: labelled("test", "same_wording", n), labelled_capacity("test", "same_wording")),
        (lambda n: documents("test", n), len(documents("test"))),
    ],
)
def test_more_of_them_than_there_are_is_an_error_too(made, most):
    assert len(made(most)) == most
    with pytest.raises(ValueError, match=f"Ask for 0 to {most}"):
        made(most + 1)
