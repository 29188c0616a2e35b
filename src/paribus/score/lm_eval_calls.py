"""Calls into lm-eval: without its chatter, with fixed draws, and with errors that a user can act on."""

from __future__ import annotations

import io
import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from typing import Final

import numpy as np

from paribus.errors import ParibusError

SEED: Final = 0
"""Of Python's and numpy's draws while documents are read, as lm-eval sets it: some tasks shuffle choices."""


@contextmanager
def calling(name: str, instead: str | None = None) -> Iterator[None]:
    """Call lm-eval: quietly, with fixed seeds, and what it raises becomes a ParibusError that names the task.

    `instead` is another way out.
    """
    try:
        with quiet(), _seeded():
            yield
    except ParibusError:
        raise
    except Exception as fault:
        raise ParibusError(
            f"lm-eval cannot use the task {name!r}: {reason_of(fault)}",
            way_out=instead or "Correct its YAML file or its documents.",
        ) from fault


def reason_of(fault: Exception) -> str:
    said = (str(fault).strip() or type(fault).__name__).splitlines()[0].rstrip(".")
    return f"{said}." if type(fault) in (ValueError, OSError) else f"{type(fault).__name__}: {said}."


@contextmanager
def quiet() -> Iterator[None]:
    """Keep lm-eval's warnings, log and progress bars off the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _seeded() -> Iterator[None]:
    """Draw from fixed seeds, and leave the global random states as they were."""
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(SEED)
    np.random.seed(SEED)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


@contextmanager
def hub_or_cache() -> Iterator[None]:
    """Let the hub's cache alone be read where the hub does not answer, without half a minute of retries."""
    import datasets.config
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    if not any(before) and not _hub_answers():
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


@cache
def _hub_answers() -> bool:
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:
        return False
    return True
