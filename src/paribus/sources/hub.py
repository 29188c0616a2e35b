"""Models and data sets on the Hugging Face hub by name, or files in their place."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paribus.errors import DataError, ModelError, Place, nearest
from paribus.sources.blocks import HubData, HubModel
from paribus.sources.files import read_rows, resolve
from paribus.sources.forms import Row

WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""What is fetched of a model: settings, tokenizer and weights; never pickles or other formats."""


def hub_rows(block: HubData, split: str, base: Path) -> list[Row]:
    """Return the rows of one split of a hub data set; a file named by `local` is read in its place."""
    local, unset = _local(block, split, base)
    if local is not None and local.exists():
        return read_rows(local, f"data.local.{split}")
    remote = getattr(block, split)
    if remote is None:
        return read_rows(resolve(block.local[split], base), f"data.local.{split}")
    try:
        with _errors_only():
            table = _fetched(block, remote)
    except (OSError, ValueError) as fault:
        instead = f"In its place, {unset or f'{local} does not exist.'}" if split in block.local else ""
        raise _unreachable(block, split, fault, instead) from fault
    place = Place(f"{block.name} ({remote})")
    return [Row(values, number, place) for number, values in enumerate(table, 1)]


def hub_splits(name: str, config: str | None) -> HubData:
    """Return the block of a hub data set with the splits it has; DataError where it cannot be asked."""
    import datasets

    try:
        with _errors_only():
            splits = datasets.get_dataset_split_names(name, config)
    except (OSError, ValueError) as fault:
        reason = (str(fault).strip() or type(fault).__name__).splitlines()[0].rstrip(".")
        raise DataError(
            f"there is no file {name!r}, and the hub does not give a data set of that name: {reason}.",
            way_out="Check the name and the network; a configuration follows a colon: owner/name:main.",
        ) from fault
    if "train" not in splits:
        raise DataError(f"the data set {name!r} has no split train.", way_out=f"It has: {', '.join(splits)}.")
    held = {split: split if split in splits else None for split in ("validation", "test")}
    return HubData.model_validate({"name": name, "config": config, **held})


def _fetched(block: HubData, remote: str) -> Any:
    """Load one split through `datasets`, which keeps it on disk; a message of its own is no use to a user."""
    import datasets

    return datasets.load_dataset(block.name, block.config, split=remote, revision=block.revision)


@contextmanager
def _errors_only() -> Iterator[None]:
    """Keep the hub's own words about each retry off the screen: what came of them is said once, by us."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _local(block: HubData, split: str, base: Path) -> tuple[Path | None, str | None]:
    """Return the file in place of a split, and what kept it from being one where a variable is not set."""
    for name in block.local:
        if name not in ("train", "validation", "test"):
            raise DataError(
                f"data.local names {name!r}.", way_out=nearest(name, ("train", "validation", "test"))
            )
    if split not in block.local:
        return None, None
    try:
        return resolve(block.local[split], base), None
    except DataError as unset:
        return None, unset.message


def _unreachable(block: HubData, split: str, fault: Exception, instead: str) -> DataError:
    reason = (str(fault).strip() or type(fault).__name__).splitlines()[0].rstrip(".")
    named = f"{block.name!r} (split {getattr(block, split)!r})"
    return DataError(
        f"the data set {named} could not be loaded from the hub: {reason}. {instead}".rstrip(),
        way_out=f"Check the name, the split and the network, or name a file: data.local: {{{split}: FILE}}.",
    )


def model_snapshot(block: HubModel) -> Path:
    """Return the folder of a hub model, fetched once; raises ModelError where it cannot be.

    Its name is the commit. Without a network the copy in the hub's cache is used.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError

    try:
        with _errors_only():
            return Path(snapshot_download(block.name, revision=block.revision, allow_patterns=WANTED))
    except (OSError, ValueError, HfHubHTTPError, HFValidationError) as fault:
        gated = isinstance(fault, GatedRepoError)
        reason = "it is gated" if gated else str(fault).strip().splitlines()[0]
        raise ModelError(
            f"the model {block.name!r} could not be fetched from the hub: {reason}",
            way_out="Accept its licence on the hub and log in with `hf auth login`."
            if gated
            else "Check the name, revision and network, or give a directory: {source: path, path: P}.",
        ) from fault
