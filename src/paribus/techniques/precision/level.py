"""What the low levels of precision share: settings, where they run, how they are applied and proven."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import model_validator

from paribus.machine import Machine
from paribus.techniques.base import Live, Obstacle, Setting, Settings, Technique, added_later
from paribus.techniques.precision import native
from paribus.techniques.precision.formats import Role
from paribus.techniques.precision.recipes import Recipe
from paribus.techniques.precision.scaling import Scaling

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

Compute = Literal["native", "emulated"]
Element = Literal[
    "fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "int8", "int4", "nf4"
]
KEY: Final = "precision"
"""Where a level keeps what it observes."""


class RoleCast(Settings):
    """The format of a role, its scaling, or both; what is left out is the recipe's."""

    format: Element | None = added_later(None, as_if_absent=None)
    scaling: Scaling | None = added_later(None, as_if_absent=None)

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        return {"format": value} if isinstance(value, str) else value


class Roles(Settings):
    """Other formats than the recipe's, role by role: `{weights: e5m2, gradients: {scaling: row}}`."""

    activations: RoleCast | None = added_later(None, as_if_absent=None)
    weights: RoleCast | None = added_later(None, as_if_absent=None)
    gradients: RoleCast | None = added_later(None, as_if_absent=None)

    def chosen(self) -> dict[Role, RoleCast]:
        """Return the roles that are named."""
        named: dict[Role, RoleCast | None] = {
            "activations": self.activations,
            "weights": self.weights,
            "gradients": self.gradients,
        }
        return {role: cast for role, cast in named.items() if cast is not None}

    def __str__(self) -> str:
        casts = {role: [cast.format, cast.scaling] for role, cast in self.chosen().items()}
        return " ".join(
            f"{role}:{'/'.join(str(word) for word in words if word is not None)}"
            for role, words in casts.items()
        )


class Low(Technique):
    """What the low levels share: native through the Trainer, or emulated, a cast an operand."""

    native_dtype: ClassVar[str] = ""
    runs_natively: ClassVar[bool] = True
    hardware_shapes: ClassVar[bool] = False
    output_format: ClassVar[str] = "bf16"

    compute: Compute = "native"
    keep_high: tuple[str, ...] = added_later((), as_if_absent=())
    outputs: bool = added_later(False, as_if_absent=False)
    attention: bool = added_later(False, as_if_absent=False)
    residual: bool = added_later(False, as_if_absent=False)
    roles: Roles = added_later(Roles(), as_if_absent=Roles())

    @property
    def word(self) -> str:
        """Return the word that a study names this level by."""
        return str(type(self).model_fields["kind"].default)

    @property
    def label(self) -> str:
        """Name this level in a table: `with outputs and residual`, roles as `weights:e5m2/row`."""
        chosen = self._beside(True)
        if self.roles == Roles() and not chosen:
            return super().label
        plain = self.model_copy(update={"roles": Roles(), **dict.fromkeys(chosen, False)}).label
        words = [f"with {' and '.join(chosen)}"] if chosen else []
        return " ".join([plain, *words, *([str(self.roles)] if self.roles != Roles() else [])])

    def base_recipe(self) -> Recipe:
        """Return the casts of the three products, before `roles` changes any."""
        raise NotImplementedError

    def recipe_in_full(self) -> Recipe:
        """Return the casts of the three products."""
        recipe = self.base_recipe()
        for role, cast in self.roles.chosen().items():
            recipe = recipe.with_role(role, cast.format, cast.scaling)
        return recipe

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Say why the hardware cannot do this; emulation runs anywhere."""
        if self.compute == "emulated":
            return None
        emulated = "set compute: emulated, which rounds in the same places and computes in fp32"
        if not self.runs_natively or self.word not in native.NEEDS:
            return Obstacle(
                f"{self.word} is emulated only: no native products of it are part of this", emulated
            )
        found = native.obstacle(self.word, machine)
        decided = ["outputs", "attention", "residual", "roles"]
        if self.word not in native.CONVERTED:
            decided.append("keep_high")
        given = [name for name in decided if name in self._changed()]
        if found is None and given:
            return Obstacle(f"hardware decides by itself what {', '.join(given)} would choose", emulated)
        return found

    def _changed(self) -> set[str]:
        fields = type(self).model_fields
        return {name for name in self.model_fields_set if getattr(self, name) != fields[name].default}

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Convert the linear layers, or watch what the hardware does."""
        if self.compute == "native":
            with self.natively(model, live), native.watched(model, live) as changed:
                yield changed
            return
        with self.emulated(model, live) as changed:
            yield changed

    @contextmanager
    def natively(self, model: Any, live: Live) -> Iterator[None]:
        """Set up what the hardware needs beside the Trainer's autocast."""
        yield

    def after_step(self, model: torch.nn.Module, live: Live) -> None:
        """End the count of native products after the first optimizer step."""
        if self.compute == "native":
            native.after_step(live)

    @contextmanager
    def emulated(
        self, model: Any, live: Live, active: Callable[[], bool] | None = None
    ) -> Iterator[torch.nn.Module]:
        """Emulate for the length of a training run, while `active` says so."""
        from paribus.techniques.precision import emulate

        options = emulate.Options(
            keep_high=self.keep_high,
            outputs=self.outputs,
            attention=self.attention,
            residual=self.residual,
            output_format=self.output_format,
            hardware_shapes=self.hardware_shapes,
        )
        recipe = self.recipe_in_full()
        with emulate.emulated(self.word, model, live, recipe, options, active=active) as changed:
            yield changed

    @contextmanager
    def as_trained(self, model: torch.nn.Module, live: Live) -> Iterator[None]:
        """Round the forward products in evaluation too, or compute them as autocast does."""
        if self.compute == "native":
            with native.as_trained(self.word, live):
                yield
            return
        from paribus.techniques.precision.tally import scoring

        with scoring(live.observed[KEY]):
            yield

    def state(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the largest magnitudes that delayed and calibrated scaling look back on."""
        return live.observed[KEY].remembered() if self.compute == "emulated" else {}

    def restore(self, model: torch.nn.Module, live: Live, state: dict[str, Any]) -> None:
        if self.compute == "emulated":
            live.observed[KEY].remember(state)

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return what was really rounded, or the dtype that the hardware really gave."""
        if self.compute == "native":
            return native.evidence(self.word, self.native_dtype, live)
        from paribus.techniques.precision import monitor

        recipe = self.recipe_in_full()
        roles: tuple[Role, ...] = ("activations", "weights", "gradients")
        casts = {role: list(recipe.of_role(role).values()) for role in roles}
        found = monitor.evidence(self.word, live.observed[KEY], model, self._beside(True))
        return found | {
            "formats": {role: _one([cast.format for cast in casts[role]]) for role in roles},
            "scaling": {role: _one([cast.scaling for cast in casts[role]]) for role in roles},
            **({} if all(len(set(found)) == 1 for found in casts.values()) else {"products": recipe.words()}),
            "not_rounded": self._beside(False),
        }

    def _beside(self, chosen: bool) -> list[str]:
        """Return what is chosen, or not, to be rounded beside the products of linear layers."""
        return [name for name in ("outputs", "attention", "residual") if getattr(self, name) is chosen]


def _one(values: Sequence[Scaling] | Sequence[str]) -> Scaling | str:
    """Return the one value of a list, or its values in words."""
    unequal = list(dict.fromkeys(values))
    return unequal[0] if len(unequal) == 1 else ", ".join(map(str, unequal))
