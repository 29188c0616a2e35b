"""Short instructions with one right answer each, made rather than collected; also as classes and as text.

Nine skills (arithmetic, lists, facts), each in wordings seen in training and in wordings kept back. A
question ("add 3 and 4") belongs to one split whatever its wording, so no split contains a rephrased item
of another. The base has read all skills and wordings as running text but never as an instruction.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice, permutations, product
from typing import Final, Literal, get_args

Split = Literal["train", "validation", "test"]
Group = Literal["same_wording", "new_wording"]

_NOUNS: Final = {
    ("animal", "white"): "swan dove lamb goose",
    ("animal", "black"): "crow panther raven beetle",
    ("animal", "brown"): "bear otter deer moose",
    ("animal", "grey"): "wolf mouse elephant donkey",
    ("animal", "green"): "frog lizard mantis",
    ("animal", "yellow"): "canary chick",
    ("plant", "white"): "daisy garlic",
    ("plant", "brown"): "bark acorn chestnut",
    ("plant", "red"): "rose cherry tomato poppy",
    ("plant", "green"): "grass leaf pea cactus moss",
    ("plant", "yellow"): "lemon banana corn",
    ("thing", "white"): "snow milk salt chalk",
    ("thing", "black"): "coal ink tyre soot",
    ("thing", "brown"): "soil coffee leather",
    ("thing", "red"): "brick ruby blood",
    ("thing", "blue"): "sky ocean jeans sapphire",
    ("thing", "grey"): "ash stone lead",
    ("thing", "yellow"): "sun butter",
}
_OPPOSITES: Final = (
    "big small, hot cold, fast slow, old new, hard soft, high low, dark light, full empty, open shut, "
    "early late, rich poor, wet dry, loud quiet, strong weak, near far, long short, thick thin, "
    "clean dirty, true false, happy sad, sharp blunt, deep shallow, wide narrow, cheap dear"
)
_PAIRS: Final = tuple(pair.split() for pair in _OPPOSITES.split(","))
_KIND: Final = {noun: kind for (kind, _), nouns in _NOUNS.items() for noun in nouns.split()}
_COLOUR: Final = {noun: colour for (_, colour), nouns in _NOUNS.items() for noun in nouns.split()}
_WORDS: Final = tuple(sorted(_KIND))
_NAMES: Final = {*_KIND, *_KIND.values(), *_COLOUR.values(), *(word for pair in _PAIRS for word in pair)}
_VOCABULARY: Final = tuple(sorted(_NAMES))

# Three wordings are for training; those behind the bar are kept back as `new_wording`.
_WORDINGS: Final = {
    "add": "add {0} and {1}; what is {0} plus {1}; work out the sum of {0} and {1} | how much are {0} and "
    "{1} together; find the total of {0} and {1}; i hold {0} and get {1} more so how many; put {1} on top "
    "of {0}; sum up {0} with {1}",
    "larger": "which is larger {0} or {1}; pick the bigger of {0} and {1}; find the maximum of {0} and {1} "
    "| show the greater one of {0} and {1}; between {0} and {1} which number is higher; is it {0} or {1} "
    "that is more; of {0} and {1} choose the top value; name the one that beats the other {0} or {1}",
    "first": "give the first item of {0}; what comes first in {0}; name the word at the start of {0} | "
    "which one leads {0}; return the initial element of {0}; the list {0} begins with what; show where {0} "
    "starts; open {0} and read me one word",
    "last": "give the last item of {0}; what comes last in {0}; name the word at the end of {0} | which one "
    "closes {0}; return the final element of {0}; the list {0} ends with what; show where {0} stops; read "
    "me the tail of {0}",
    "count": "count the items in {0}; how many words are in {0}; what is the length of {0} | how long is "
    "the list {0}; find the number of entries in {0}; what size has {0}; say how many there are {0}; "
    "measure {0} in words",
    "letter": "what letter does {0} begin with; give the initial of {0}; which letter comes at the front of "
    "{0} | {0} starts with which letter; how do you begin to spell {0}; name the leading letter of {0}; in "
    "the alphabet where would {0} stand; show me one letter to open {0}",
    "colour": "what is the colour of {0}; name the colour of {0}; which colour does {0} have | how is {0} "
    "coloured; what shade is {0}; {0} looks like which colour; give me the hue of {0}; what tint do you see "
    "on {0}",
    "kind": "what kind of being is {0}; name the class of {0}; which category does {0} belong to | what "
    "type is {0}; {0} is a sort of what; classify {0}; in which group do we find {0}; what does {0} count "
    "as",
    "opposite": "what is the opposite of {0}; give the antonym of {0}; which word is contrary to {0} | what "
    "would not {0} be called; find the counterpart of {0}; turn the word {0} into its other side; name what "
    "is unlike {0}; what do you say against {0}",
}
SKILLS: Final = tuple(_WORDINGS)
_OPENINGS: Final = ("", "please ", "now ", "hello ", "so ", "well then ")
_REPLIES: Final = (
    "{0}",
    "the answer is {0}",
    "it must be {0}",
    "i would say {0}",
    "my reply : {0}",
    "that gives {0}",
)
_ECHOES: Final = (
    "say {0}",
    "repeat {0}",
    "echo {0}",
    "copy {0}",
    "spell {0} for me",
    "tell me {0} again",
    "write {0}",
)
_LISTS: Final = {"first": (2, 4), "last": (2, 4), "count": (2, 6)}  # shortest, longest
_LIST_QUESTIONS: Final = 1000  # there are too many lists to enumerate; the facts limit the examples anyway
CLASSES: Final = ("animal", "plant", "thing")
_CLASSIFIED: Final = ("first", "last")  # both ask for one word of a list, and the base has read what it is
_KINDS: Final = tuple(product(_CLASSIFIED, CLASSES))
_DOCUMENTS: Final = 20_000  # drawn for running text, repetitions among them


@dataclass(frozen=True, slots=True)
class Example:
    """One instruction, the reply to learn, the answer inside that reply, and the skill it asks for."""

    prompt: str
    completion: str
    answer: str
    skill: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, before it is put into words."""

    skill: str
    slots: tuple[str, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class Labelled:
    """One instruction and the class of its answer: `what comes last in crow moss` is a plant."""

    prompt: str
    label: str


def examples(split: Split, group: Group, count: int) -> list[Example]:
    """The first `count` examples of a split and group: always the same ones, and the nine skills in turn.

    Raises ValueError for a name that does not exist and for more examples than there are different prompts.
    """
    most = capacity(split, group)
    if not 0 <= count <= most:
        raise ValueError(
            f"the embedded data has {most} different prompts in {split} {group}, and {count} were asked for. "
            f"Ask for 0 to {most}."
        )
    streams = {skill: _stream(skill, split, group) for skill in SKILLS}
    return [next(streams[skill]) for skill in islice(cycle(SKILLS), count)]


def labelled(split: Split, group: Group, count: int) -> list[Labelled]:
    """The first `count` instructions of a split and group, each with the class of the word it asks for.

    First and last words of lists in turn, and the three classes in turn: who always names one class is right
    on a third. A list belongs to the split that `examples` gives it to. Raises ValueError like `examples`.
    """
    most = labelled_capacity(split, group)
    if not 0 <= count <= most:
        raise ValueError(
            f"the embedded data has {most} prompts with a class in {split} {group}, and {count} were asked "
            f"for. Ask for 0 to {most}."
        )
    streams = {(skill, label): _of(label, _stream(skill, split, group)) for skill, label in _KINDS}
    return [
        Labelled(next(streams[skill, label]).prompt, label)
        for skill, label in islice(zip(cycle(_CLASSIFIED), cycle(CLASSES), strict=False), count)
    ]


def _of(label: str, stream: Iterator[Example]) -> Iterator[Example]:
    return (example for example in stream if _KIND[example.answer] == label)


def labelled_capacity(split: Split, group: Group) -> int:
    """The most labelled prompts that a split and group can give with no prompt twice and all balanced."""
    _check(split, group)
    counts = [
        sum(_KIND[question.answer] == label for question in _questions(skill, split))
        for skill, label in _KINDS
    ]
    return len(counts) * min(counts) * min(len(_phrasings(skill, group)) for skill in _CLASSIFIED)


def documents(split: Split, count: int | None = None) -> list[str]:
    """The first `count` documents of a split, all of them unless told: lines of what the base has read.

    No document occurs twice, and a hash decides its split: six tenths train, two are for each of the others.
    A question may stand in two splits in different words, as in any running text. Raises ValueError for a
    name that does not exist and for more documents than there are.
    """
    _check(split, "same_wording")
    mine = _documents()[split]
    if count is not None and not 0 <= count <= len(mine):
        raise ValueError(
            f"the embedded data has {len(mine)} documents in {split}, and {count} were asked for. "
            f"Ask for 0 to {len(mine)}."
        )
    return list(mine[:count])


@cache
def _documents() -> dict[Split, tuple[str, ...]]:
    draw, found = random.Random("documents"), dict[str, None]()
    for _ in range(_DOCUMENTS):
        document = pretraining_document(draw)
        found[document if isinstance(document, str) else f"{document[0]} : {document[1]} ."] = None
    splits: dict[Split, list[str]] = {name: [] for name in get_args(Split)}
    names: tuple[Split, ...] = get_args(Split)
    shares: list[Split] = [name for name, count in zip(names, (6, 2, 2), strict=True) for _ in range(count)]
    for document in found:
        digest = hashlib.sha256(document.encode()).digest()
        splits[shares[int.from_bytes(digest[:8], "big") % len(shares)]].append(document)
    return {name: tuple(listed) for name, listed in splits.items()}


def capacity(split: Split, group: Group) -> int:
    """The most examples that a split and group can give with no prompt twice and the skills balanced."""
    _check(split, group)
    return len(SKILLS) * min(len(_questions(s, split)) * len(_phrasings(s, group)) for s in SKILLS)


def _check(split: Split, group: Group) -> None:
    """Raise ValueError for a name that does not exist."""
    if split not in get_args(Split) or group not in get_args(Group):
        names = f"a split is one of {get_args(Split)}, a group one of {get_args(Group)}"
        raise ValueError(f"the embedded data has no {split!r} {group!r}: {names}")
    if split == "train" and group != "same_wording":
        raise ValueError("the embedded train split has only same_wording; validation and test have both")


def _stream(skill: str, split: Split, group: Group) -> Iterator[Example]:
    """Every prompt once; each question in a first phrasing before any question returns in a second one."""
    draw = random.Random(f"{split} {group} {skill}")
    questions = draw.sample(_questions(skill, split), len(_questions(skill, split)))
    phrasings = _phrasings(skill, group)
    own = [draw.sample(phrasings, len(phrasings)) for _ in questions]
    for turn in range(len(phrasings)):
        for question, orders in zip(questions, own, strict=True):
            reply = draw.choice(_REPLIES).format(question.answer)
            yield Example(orders[turn].format(*question.slots), reply, question.answer, skill)


def _phrasings(skill: str, group: Group) -> list[str]:
    parts = dict(zip(get_args(Group), _WORDINGS[skill].split("|"), strict=True))
    return [opening + wording.strip() for opening, wording in product(_OPENINGS, parts[group].split(";"))]


@cache
def _wordings(skill: str) -> tuple[str, ...]:
    return tuple(wording.strip() for wording in _WORDINGS[skill].replace("|", ";").split(";"))


@cache
def _questions(skill: str, split: Split) -> tuple[Question, ...]:
    """The questions of a split, chosen by hash: six tenths for training, two for each of the others."""
    keys = sorted({_key(q) for q in _every(skill)}, key=lambda key: hashlib.sha256(key.encode()).digest())
    cuts = [0, len(keys) * 6 // 10, len(keys) * 8 // 10, len(keys)]
    number = get_args(Split).index(split)
    mine = set(keys[cuts[number] : cuts[number + 1]])
    return tuple(question for question in _every(skill) if _key(question) in mine)


def _key(question: Question) -> str:
    """`3 and 4` shares its split with `4 and 3`, and `hot` with `cold`: one would give the other away."""
    if question.skill in ("add", "larger"):
        return " ".join([question.skill, *sorted(question.slots)])
    if question.skill == "opposite":
        return " ".join(sorted([*question.slots, question.answer]))
    return " ".join([question.skill, *question.slots])


@cache
def _every(skill: str) -> tuple[Question, ...]:
    """All questions of a skill; of the list skills a fixed sample."""
    if skill in _LISTS:
        draw = random.Random(f"lists {skill}")
        return tuple(dict.fromkeys(_list_question(skill, draw) for _ in range(_LIST_QUESTIONS)))
    if skill == "add":
        return tuple(Question(skill, (str(a), str(b)), str(a + b)) for a, b in product(range(13), repeat=2))
    if skill == "larger":
        return tuple(Question(skill, (str(a), str(b)), str(max(a, b))) for a, b in permutations(range(13), 2))
    both_ways = (_PAIRS, [pair[::-1] for pair in _PAIRS])
    opposites = {word: other for pairs in both_ways for word, other in pairs}
    letters = {word: word[0] for word in (*_WORDS, *opposites)}
    facts = {"letter": letters, "colour": _COLOUR, "kind": _KIND, "opposite": opposites}[skill]
    return tuple(Question(skill, (word,), answer) for word, answer in facts.items())


def _list_question(skill: str, draw: random.Random) -> Question:
    words = draw.sample(_WORDS, draw.randint(*_LISTS[skill]))
    answer = {"first": words[0], "last": words[-1], "count": str(len(words))}[skill]
    return Question(skill, (" ".join(words),), answer)


def pretraining_document(draw: random.Random) -> str | tuple[str, str]:
    """What the base reads: a line of text about any skill, or an (instruction, reply) pair that only echoes.

    The echo teaches the chat form and all reply wordings, so that fine-tuning has the skills left to connect.
    """
    if draw.random() < 0.45:
        words = [_token(draw) for _ in range(draw.randint(1, 4))]
        instruction = draw.choice(_OPENINGS) + draw.choice(_ECHOES).format(" ".join(words))
        return instruction, draw.choice(_REPLIES).format(" ".join(words))
    skill = draw.choice(SKILLS)
    question = _list_question(skill, draw) if skill in _LISTS else draw.choice(_every(skill))
    one, other = (draw.choice(_wordings(skill)).format(*question.slots) for _ in range(2))
    reply = draw.choice(_REPLIES).format(question.answer)
    answer = question.answer
    forms = (f"{one} . {answer} .", f"someone asked {one} and heard {answer} .", f"{one} : {reply} .")
    rare = f"{one} or {other} . {answer} ."
    return draw.choices((*forms, rare), weights=(50, 15, 15, 20))[0]


def _token(draw: random.Random) -> str:
    return str(draw.randint(0, 24)) if draw.random() < 0.3 else draw.choice(_VOCABULARY)
