"""Generated answers held against references: exact match, token F1, ROUGE, BLEU.

Each metric is defined as its script in Hugging Face evaluate defines it (`exact_match`, the F1 of `squad`,
`rouge`, `sacrebleu`, with their defaults). These scripts lie on the hub and not in the package evaluate, so
what they call is called here: rouge-score and sacrebleu. Texts lose the white space around them first, and
ROUGE is the plain mean over items where evaluate takes the middle of a bootstrap.
"""

from __future__ import annotations

import importlib.util
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from paribus.errors import ParibusError
from paribus.plan.scoring import TextMetrics
from paribus.record.result import Figure
from paribus.score.answers import answered, answers, mean_figure, wanted, write_texts
from paribus.score.subject import Scored, Subject
from paribus.sources.examples import Example, content_sha256

PACKAGES: Final = {"rouge": "rouge_score", "sacrebleu": "sacrebleu"}
ROUGE: Final = ("rouge1", "rouge2", "rougeL", "rougeLsum")
UNITS: Final = {"exact_match": "share of items", "f1": "F1 of words"} | dict.fromkeys(ROUGE, "F1 of ROUGE")
SENTENCE: Final = "sentence_bleu"
RESAMPLES: Final = 1000
SEED: Final = 12345
"""Of the bootstrap over items, which gives the standard error of BLEU."""
ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def check(setting: TextMetrics, base: Path) -> str:
    """Raise ParibusError where the data cannot be read or a package is missing; return the data's hash."""
    if not setting.metrics:
        raise ParibusError("metrics is empty.", way_out="Name one at least, such as metrics: [exact_match].")
    for metric in setting.metrics:
        name = PACKAGES.get(metric)
        if name is not None and importlib.util.find_spec(name) is None:
            raise ParibusError(
                f"the metric {metric} needs the package {name.replace('_', '-')}, which is not installed.",
                way_out="pip install 'paribus[scoring]'",
            )
    return content_sha256(_examples(setting, base))


def _examples(setting: TextMetrics, base: Path) -> tuple[Example, ...]:
    columns = {"prompt": setting.prompt, "completion": setting.answer}
    return answered("data", setting.data, base, "prompt_completion", columns, setting.limit)


def score(setting: TextMetrics, subject: Subject) -> Scored:
    """Score the model's greedy answers; a figure is a mean over items, but for BLEU, which is of them all."""
    examples = _examples(setting, subject.base)
    rows, counts = answers(setting, subject, examples, setting.template)
    texts, references = [row["text"] for row in rows], [wanted(example) for example in examples]
    write_texts(setting, subject, examples, texts)
    found = [_measured(setting.metrics, *pair) for pair in zip(texts, references, strict=True)]
    figures = [
        mean_figure(setting, subject, metric, [one[metric] for one in found], UNITS[metric])
        for metric in found[0]
        if metric in UNITS
    ]
    if "sacrebleu" in setting.metrics:
        figures.append(_bleu_figure(setting, subject, texts, references))
    items = [
        {"id": example.id, **one, "tokens": row["tokens"], "ties": row["ties"]}
        for example, one, row in zip(examples, found, rows, strict=True)
    ]
    return Scored(tuple(figures), items, counts)


def _measured(metrics: Iterable[str], text: str, reference: str) -> dict[str, float]:
    """Return what each metric says of one answer."""
    found: dict[str, float] = {}
    for metric in metrics:
        match metric:
            case "exact_match":
                found[metric] = float(text == reference)
            case "f1":
                found[metric] = f1(text, reference)
            case "rouge":
                found |= {name: one.fmeasure for name, one in _rouge().score(reference, text).items()}
            case "sacrebleu":
                found[SENTENCE] = _bleu().sentence_score(text, [reference]).score
    return found


def f1(text: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall over words, each counted as often as it stands there.

    Source: Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1.
    """
    said, meant = Counter(words(text)), Counter(words(reference))
    common = (said & meant).total()
    return 2 * common / (said.total() + meant.total()) if common else 0.0


def words(text: str) -> list[str]:
    """Return the words of a text as SQuAD compares them: small letters, no punctuation, no articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=False)


@cache
def _bleu() -> Any:
    """Return BLEU of single texts, in which orders beyond their length are left out."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(effective_order=True)


def _bleu_figure(
    setting: TextMetrics, subject: Subject, texts: Sequence[str], references: Sequence[str]
) -> Figure:
    """Return BLEU of all texts; its standard error is over resamples of the items, drawn by a fixed seed."""
    single = [_bleu().sentence_score(*pair) for pair in zip(texts, ([r] for r in references), strict=True)]
    counted = np.array([[*one.counts, *one.totals, one.sys_len, one.ref_len] for one in single])
    drawn = np.random.default_rng(SEED).integers(len(single), size=(RESAMPLES, len(single)))
    error = np.std([corpus_bleu(counted[rows].sum(0)) for rows in drawn], ddof=1)
    return Figure(
        step=subject.step,
        task=setting.name or setting.kind,
        metric="sacrebleu",
        value=corpus_bleu(counted.sum(0)),
        n=len(single),
        unit="BLEU, 0 to 100",
        standard_error=float(error) if len(single) > 1 else None,
    )


def corpus_bleu(counted: np.ndarray) -> float:
    """Return BLEU from sums over texts: n-grams found, n-grams written, and both lengths."""
    found, written, lengths = counted[:4].tolist(), counted[4:8].tolist(), counted[8:].tolist()
    return float(_bleu().compute_bleu(found, written, *lengths, smooth_method="exp").score)
