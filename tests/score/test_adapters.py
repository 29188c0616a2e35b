"""Many adapters beside one base: each scores as it does alone, and the base stays what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from paribus.errors import ModelError, ParibusError
from paribus.score.adapters import Adapters
from paribus.techniques import AnyPeft, Ia3, Live, Lora, PrefixTuning, PromptTuning, PTuning, Vera

METHODS = {
    "law": Lora(r=4),
    "chat": Lora(r=2, lora_alpha=3, target_modules=("q_proj", "down_proj")),
    "dora": Lora(r=2, use_dora=True),
    "ia3": Ia3(),
    "vera": Vera(),
    "loha": AnyPeft(method="LoHaConfig"),
    "norms": AnyPeft(method="LNTuningConfig"),
    "prompt": PromptTuning(),
    "prefix": PrefixTuning(prefix_projection=True),
    "p": PTuning(),
}
LORAS = ("law", "chat")
IDS = torch.arange(3, 39).view(3, 12)
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
STATE = 1e-5
"""How far logits of a mixed batch may be from those of each adapter alone: rows are multiplied apart."""


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**BATCH).logits[:, -12:]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, torch.Tensor]]:
    """Return a folder of each adapter, moved by a fixed draw, and its logits under its own tuning."""
    found = {}
    for number, (name, method) in enumerate(METHODS.items()):
        folder, generator = tmp_path_factory.mktemp(name), torch.Generator().manual_seed(number)
        with method.applied(tiny.llama(), Live(seed=number)) as model:
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            method.save(model, folder)
            found[name] = (folder, logits(model.eval()))
    return found


def folders(trained: Any, *names: str) -> dict[str, Path]:
    return {name: trained[name][0] for name in names or trained}


def state(model: Any) -> Any:
    return (
        [(name, id(module)) for name, module in model.named_modules()],
        [(name, id(p), p.requires_grad, p._version) for name, p in model.named_parameters()],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        sorted(vars(model)),
        model.training,
    )


def test_each_scores_as_it_does_alone_in_any_order(trained: Any) -> None:
    base = tiny.llama()
    plain = logits(base.eval())
    with Adapters(base, folders(trained)) as adapters:
        assert adapters.names == tuple(METHODS)
        for name in (*METHODS, *reversed(METHODS), "law", "prompt", "law"):
            with adapters.using(name) as model:
                assert torch.equal(logits(model), trained[name][1]), name
            assert torch.equal(logits(base), plain)
        with adapters.using(None) as model:
            assert model is base
    assert len({tuple(exact.flatten().tolist()) for _, exact in trained.values()}) == len(METHODS)


def test_the_base_is_left_as_it_was(trained: Any) -> None:
    base = tiny.llama().train()
    before = state(base)
    with Adapters(base, folders(trained)) as adapters:
        during = state(base)
        with adapters.using("law"):
            assert state(base) != during  # the planted fault: what a base left wired would look like
        adapters.remove("law")
        adapters.remove("norms")
        adapters.add("again", trained["law"][0])
        assert state(base)[:3] == during[:3] == before[:3]
    assert state(base) == before
    with pytest.raises(RuntimeError), Adapters(base, folders(trained)) as adapters, adapters.using("ia3"):
        raise RuntimeError
    assert state(base) == before


def test_adding_and_removing_moves_no_other(trained: Any) -> None:
    with Adapters(tiny.llama(), folders(trained, "law")) as adapters:
        adapters.add("chat", trained["chat"][0])
        adapters.add("ia3", trained["ia3"][0])
        adapters.remove("law")
        assert adapters.names == ("chat", "ia3")
        for name in adapters.names:
            with adapters.using(name) as model:
                assert torch.equal(logits(model), trained[name][1])
        adapters.add("law", trained["law"][0])
        with adapters.using("law") as model:
            assert torch.equal(logits(model), trained["law"][1])
        with pytest.raises(ParibusError, match="there is no adapter 'lab'") as caught:
            adapters.remove("lab")
        assert "Did you mean 'law'" in (caught.value.way_out or "")
        with pytest.raises(ParibusError, match="already"):
            adapters.add("law", trained["law"][0])


def test_each_row_of_a_batch_has_an_adapter_of_its_own(trained: Any) -> None:
    base = tiny.llama()
    plain = logits(base.eval())
    with Adapters(base, folders(trained, *LORAS, "ia3")) as adapters, torch.no_grad():
        rows = adapters.mixed(["chat", None, "law"], **BATCH).logits
        for row, wanted in enumerate((trained["chat"][1], plain, trained["law"][1])):
            assert (rows[row] - wanted[row]).abs().max() < STATE
        assert (rows[0] - trained["law"][1][0]).abs().max() > 100 * STATE  # the planted fault: another's
        assert torch.equal(adapters.mixed([None, None, None], **BATCH).logits, plain)
        with pytest.raises(ParibusError, match="'ia3' cannot share a batch"):
            adapters.mixed(["law", "ia3", None], **BATCH)


def test_bytes_are_those_of_one_base_and_each_adapter(trained: Any) -> None:
    base = tiny.llama()
    own = sum(p.numel() * p.element_size() for p in base.parameters())
    buffers = sum(b.numel() * b.element_size() for b in base.buffers())
    with Adapters(base, folders(trained, "law", "chat", "prompt")) as adapters:
        assert adapters.bytes["base"] == own + buffers
        for name in ("law", "prompt"):
            stored = sum(tensor.nbytes for tensor in stored_in(trained[name][0]).values())
            assert adapters.bytes[name] == stored
        whole = sum(adapters.bytes.values())
        adapters.remove("chat")
        assert sum(adapters.bytes.values()) < whole
        assert whole < 2 * adapters.bytes["base"]


def stored_in(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "adapter_model.safetensors")


def test_what_does_not_fit_is_told_and_leaves_the_base_alone(trained: Any, tmp_path: Path) -> None:
    base = tiny.gemma()
    before = state(base)
    for name in ("law", "ia3"):
        with pytest.raises(ModelError, match="does not fit GemmaForCausalLM"):
            Adapters(base, folders(trained, name))
        assert state(base) == before
    with pytest.raises(ModelError, match="is missing"):
        Adapters(base, {"nothing": tmp_path})
    good = tiny.llama()
    with Adapters(good, folders(trained, "law")) as adapters:
        with Lora(r=4).applied(tiny.gemma(), Live(seed=0)) as model:
            Lora(r=4).save(model, tmp_path)
        with pytest.raises(ModelError, match="does not fit LlamaForCausalLM"):
            adapters.add("foreign", tmp_path)
        assert adapters.names == ("law",)
        with adapters.using("law") as model:
            assert torch.equal(logits(model), trained["law"][1])
