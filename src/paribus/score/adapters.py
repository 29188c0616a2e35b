"""Many trained adapters beside one base: the base is in memory once, and each request picks its adapter.

    with Adapters(base, {"law": "runs/law/last", "chat": "runs/chat/last"}) as adapters:
        with adapters.using("law") as model:
            logits = model(**batch).logits
        rows = adapters.mixed(["law", None, "chat"], **batch_of_three).logits
        adapters.bytes  # {"base": 538060288, "law": 1843200, "chat": 1843200}

An adapter scores as it does alone, bit for bit; outside of `using` the base is what it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch

from paribus.errors import ModelError, ParibusError, nearest
from paribus.techniques.tuning import saved

BASE: Final = "base"
"""The base's entry in `Adapters.bytes`; no adapter may be called so."""
_NO_ADAPTER: Final = "__base__"
"""What peft calls a row without an adapter."""


class _Wiring:
    """Which submodules and parameters stand where in a model, and which attributes the model itself has."""

    def __init__(self, parents: Sequence[torch.nn.Module]) -> None:
        self.places = [(parent, dict(parent._modules), dict(parent._parameters)) for parent in parents]
        self.attributes = dict(vars(parents[0]))

    def restore(self) -> None:
        """Put each back in its place; whether a model trains is no part of it."""
        for parent, modules, parameters in self.places:
            parent._modules.clear()
            parent._modules.update(modules)
            parent._parameters.clear()
            parent._parameters.update(parameters)
        model = self.places[0][0]
        for name in vars(model).keys() - self.attributes.keys():
            delattr(model, name)
        for name in self.attributes.keys() - vars(model).keys():
            setattr(model, name, self.attributes[name])


class _Group:
    """Adapters that share a wrapped model, by the names they have in it."""

    def __init__(self, model: Any, wiring: _Wiring, by_row: bool) -> None:
        self.model, self.wiring, self.by_row = model, wiring, by_row
        self.keys: dict[str, str] = {}


class Adapters:
    """Saved adapters by name, beside one base model that they were trained on.

    Adapters are folders in peft's format, of any of its methods; LoRA's share one wrapped model, so that a
    batch can hold rows for several of them, and every other has its own. `bytes` holds what each takes in
    memory. The base is put into evaluation mode; when this is closed it is as it was before.
    """

    def __init__(self, base: Any, folders: Mapping[str, Path | str] | None = None) -> None:
        self.base = base
        self._parents = list(base.modules())
        self._plain = _Wiring(self._parents)
        self._before = {parameter: parameter.requires_grad for parameter in base.parameters()}
        self._training = base.training
        self._groups: list[_Group] = []
        self._made = 0
        self.bytes = {BASE: _held(base)}
        base.eval()
        try:
            for name, folder in (folders or {}).items():
                self.add(name, folder)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Adapters:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def names(self) -> tuple[str, ...]:
        """List the adapters in the order they were added."""
        return tuple(name for name in self.bytes if name != BASE)

    def add(self, name: str, folder: Path | str) -> None:
        """Load one more adapter; raises ModelError where it cannot be read or does not fit the base."""
        if name in self.bytes:
            raise ParibusError(f"there is an adapter {name!r} already", way_out="Give it another name.")
        saved.read_config(Path(folder))
        config: Any = saved.peft_config(Path(folder), trainable=False)
        by_row = _computed_by_row(config)
        shared = next((group for group in self._groups if by_row and group.by_row), None)
        self._made += 1
        key, versions = f"number{self._made}", [parameter._version for parameter in self._before]
        before = self._held(shared) if shared else self.bytes[BASE]
        try:
            with torch.random.fork_rng(devices=[]):
                if shared:
                    group = self._joined(shared, config, key, Path(folder))
                else:
                    group = self._begun(config, key, Path(folder), by_row)
        except ValueError as error:
            raise ModelError(
                f"the adapter in {str(folder)!r} does not fit {type(self.base).__name__}: {error}",
                way_out="Name an adapter that was trained on this model.",
            ) from error
        finally:
            self._put_back()
        if versions != [parameter._version for parameter in self._before]:
            raise ModelError(f"the adapter in {str(folder)!r} has changed the base's own weights")
        group.keys[name] = key
        self.bytes[name] = self._held(group) - before

    def remove(self, name: str) -> None:
        """Forget an adapter and free its memory."""
        group = self._group(name)
        if len(group.keys) == 1:
            self._groups.remove(group)
        else:
            with self._wired(group), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Adapter .* was active which is now deleted")
                group.model.delete_adapter(group.keys[name])
        del group.keys[name], self.bytes[name]

    @contextmanager
    def using(self, name: str | None) -> Iterator[Any]:
        """Yield the model with one adapter, or the base alone for None."""
        if name is None:
            yield self.base
            return
        group = self._group(name)
        with self._wired(group):
            group.model.set_adapter(group.keys[name], inference_mode=True)
            yield group.model

    def mixed(self, names: Sequence[str | None], **batch: Any) -> Any:
        """Return the output of one batch whose rows each have an adapter of their own, None for the base.

        The adapters must be of LoRA: peft computes no other method row by row.
        """
        groups = list(dict.fromkeys(self._group(name) for name in names if name is not None))
        if not groups:
            return self.base(**batch)
        alone = [name for group in groups if not group.by_row for name in group.keys]
        if alone:
            raise ParibusError(
                f"{alone[0]!r} cannot share a batch with other adapters: only those of LoRA can",
                way_out="Score its rows in a batch of their own, under `using`.",
            )
        keys = [_NO_ADAPTER if name is None else groups[0].keys[name] for name in names]
        with self._wired(groups[0]):
            try:
                return groups[0].model(**batch, adapter_names=keys)
            except ValueError as error:
                raise ParibusError(
                    f"{type(self.base).__name__} cannot take rows with adapters of their own: {error}",
                    way_out="Score the rows of each adapter in a batch of their own, under `using`.",
                ) from error

    def close(self) -> None:
        """Forget all adapters and leave the base as it was found."""
        self._groups.clear()
        self.bytes = {BASE: self.bytes[BASE]}
        self._put_back()
        self.base.train(self._training)

    def _begun(self, config: Any, key: str, folder: Path, by_row: bool) -> _Group:
        """Wrap the base for an adapter of its own, or for the first of several."""
        import peft

        with saved.quiet():
            model = peft.get_peft_model(self.base, config, adapter_name=key)
        saved.put(model, folder, key)
        group = _Group(model.eval(), _Wiring(self._parents), by_row)
        self._groups.append(group)
        return group

    def _joined(self, group: _Group, config: Any, key: str, folder: Path) -> _Group:
        """Add an adapter to those that share a wrapped model."""
        with self._wired(group):
            group.model.add_adapter(key, config)
            try:
                saved.put(group.model, folder, key)
            except ValueError:
                group.model.delete_adapter(key)
                raise
            group.model.eval()
        return group

    @contextmanager
    def _wired(self, group: _Group) -> Iterator[None]:
        """Have the adapters of a group in the base for a while."""
        group.wiring.restore()
        try:
            with saved.quiet():
                yield
        finally:
            group.wiring = _Wiring(self._parents)
            self._put_back()

    def _held(self, group: _Group) -> int:
        """Count the bytes of the base with the adapters of a group."""
        with self._wired(group):
            return _held(group.model)

    def _put_back(self) -> None:
        self._plain.restore()
        for parameter, flag in self._before.items():
            parameter.requires_grad_(flag)

    def _group(self, name: str) -> _Group:
        found = next((group for group in self._groups if name in group.keys), None)
        if found is None:
            raise ParibusError(f"there is no adapter {name!r}.", way_out=nearest(name, self.names))
        return found


def _computed_by_row(config: Any) -> bool:
    """Say whether peft can give each row of a batch an adapter of its own: LoRA without its extensions."""
    plain = config.peft_type == "LORA" and config.bias == "none"
    return plain and not config.use_dora and not config.modules_to_save


def _held(model: torch.nn.Module) -> int:
    """Count the bytes of a model's parameters and buffers, each once."""
    tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
