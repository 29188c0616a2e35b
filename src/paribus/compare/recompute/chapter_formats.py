"""Claims of the chapter on number formats: what they hold, and which role each is for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from paribus.compare.recompute import Computed, Statement, computed
from paribus.techniques.precision import bits
from paribus.techniques.precision.formats import E4M3, E5M2, FORMATS, FP16, Format, round_to
from paribus.techniques.precision.scaling import LOSS_SCALE, scaled_round

if TYPE_CHECKING:
    import torch

NAMES: Final = ("fp32", "fp16", "bf16", "e4m3", "e5m2")
TINY_GRADIENT: Final = 1e-8


def _bits(name: str) -> dict[str, float]:
    """Return a format's bits and reach: a sign, the exponent, and the mantissa that is stored."""
    form = FORMATS[name]
    return {
        "sign": 1,
        "exponent": form.exponent_bits,
        "mantissa": bits.fraction_bits(form),
        "largest": form.largest,
        "smallest_normal": form.smallest_normal,
        "eps": form.relative_step or 0.0,
    }


def b03() -> Computed:
    """Read the table of formats: bits, reach and order of precision."""
    found = {name: _bits(name) for name in NAMES}
    numbers: dict[str, tuple[float, str] | float] = {
        f"{name}.{part}": (found[name][part], "bits")
        for name in NAMES
        for part in ("sign", "exponent", "mantissa")
    }
    wide = ("fp32", "fp16", "bf16")
    numbers |= {f"{name}.range": (math.log10(found[name]["largest"]), "decades") for name in wide}
    eps, reach = ({name: found[name][key] for name in NAMES} for key in ("eps", "largest"))
    return computed(
        numbers,
        Statement(
            says="precision falls from FP32 over FP16 and BF16 to FP8",
            holds=eps["fp32"] < eps["fp16"] < eps["bf16"] < eps["e4m3"] < eps["e5m2"],
            found=", ".join(f"{name} {value:.3g}" for name, value in eps.items()),
        ),
        Statement(
            says="of the two FP8 formats E4M3 reaches less far and E5M2 further",
            holds=reach["e4m3"] < reach["e5m2"],
            found=f"{reach['e4m3']:g} and {reach['e5m2']:g}; FP16 reaches further, {reach['fp16']:g}",
        ),
    )


def b04() -> Computed:
    """Find what becomes of small and large numbers in FP16."""
    lost = FP16.smallest_subnormal / 2  # half of the least number, a tie, still rounds to zero
    low, large = (_in("float16", value) for value in (lost, 65520.0))
    return computed(
        {"largest": FP16.largest, "zero_up_to": lost},
        Statement(says="a gradient of 1e-8 becomes 0", holds=low == 0 and _in("float16", TINY_GRADIENT) == 0),
        Statement(
            says="a larger activation becomes infinite", holds=math.isinf(large), found="from 65520 on"
        ),
    )


def _in(dtype: str, value: float) -> float:
    import torch

    return torch.tensor(value).to(getattr(torch, dtype)).item()


def b05() -> Computed:
    """Compare the reach of BF16 with that of FP32."""
    one, other = _bits("bf16"), _bits("fp32")
    return computed(
        {"bf16.largest": one["largest"], "fp32.largest": other["largest"]},
        Statement(
            says="BF16 has the exponent, and so the range, of FP32",
            holds=one["exponent"] == other["exponent"] and one["smallest_normal"] == other["smallest_normal"],
            found=f"8 bits each; up to {one['largest']:.3g} and {other['largest']:.3g}, "
            f"normal from {one['smallest_normal']:.3g} both",
        ),
        Statement(
            says="what overflows or underflows in FP16 does not in BF16",
            holds=math.isinf(_in("float16", 1e5))
            and math.isfinite(_in("bfloat16", 1e5))
            and _in("bfloat16", TINY_GRADIENT) > 0 == _in("float16", TINY_GRADIENT),
            found="1e5 is infinite in FP16 and finite in BF16, 1e-8 is zero and not zero",
        ),
    )


def b07() -> Computed:
    """Take one step of mixed precision and see which role has which format, and why."""
    import torch

    roles = _roles()
    small = {
        name: torch.tensor(1.0, dtype=dtype)
        for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32))
    }
    for _ in range(1000):
        small = {name: weight + 0.001 for name, weight in small.items()}
    restored = _in("float16", TINY_GRADIENT * LOSS_SCALE) / LOSS_SCALE
    return computed(
        {},
        Statement(
            says="forward and backward compute in low precision; weights and moments stay in FP32",
            holds=roles["low"] == {torch.bfloat16} and roles["high"] == {torch.float32},
            found="one AdamW step of a linear layer under autocast: output and its gradient bfloat16, "
            "weights, their gradients and both moments float32",
        ),
        Statement(
            says="sums in low precision drift",
            holds=small["bf16"].item() == 1 and abs(small["fp32"].item() - 2) < 1e-3,
            found=f"1 and a thousand times 0.001 is {small['fp32'].item():.4f} in FP32 "
            f"and {small['bf16'].item():g} in BF16",
        ),
        Statement(
            says="FP16 needs a loss scale for its gradients, BF16 does not",
            holds=_in("float16", TINY_GRADIENT) == 0
            and math.isclose(restored, TINY_GRADIENT, rel_tol=0.01)
            and math.isclose(_in("bfloat16", TINY_GRADIENT), TINY_GRADIENT, rel_tol=0.01),
            found=f"1e-8 is lost in FP16, and is {restored:.3g} with a scale of {LOSS_SCALE:g}",
        ),
    )


def _roles() -> dict[str, set[torch.dtype]]:
    """Return the dtypes of what is computed and of what is kept in one step under autocast."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(layer.parameters())
    low: set[torch.dtype] = set()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(torch.randn(4, 8, generator=generator))
        low.add(output.dtype)
        output.register_hook(lambda upstream: low.add(upstream.dtype))
    output.float().sum().backward()
    optimizer.step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    kept = [*layer.parameters(), *(p.grad for p in layer.parameters() if p.grad is not None), *moments]
    return {"low": low, "high": {tensor.dtype for tensor in kept}}


def b08() -> Computed:
    """Count the bytes that AdamW holds for each parameter beside its 16-bit weight and gradient."""
    import torch

    weight = torch.zeros(64, 64, requires_grad=True)
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    held = {"master": weight, **{key: optimizer.state[weight][f"exp_avg{tail}"] for key, tail in _MOMENTS}}
    numbers = {name: float(t.numel() * t.element_size() / weight.numel()) for name, t in held.items()}
    numbers["state"] = sum(numbers.values())
    return computed({name: (value, "bytes a parameter") for name, value in numbers.items()})


_MOMENTS: Final = (("first_moment", ""), ("second_moment", "_sq"))


def b11() -> Computed:
    """Round operands of a product to each FP8 format: which suits which role, and what scaling does."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(256, 256, generator=generator) for _ in range(2))
    spread = torch.exp(3 * torch.randn(256, 256, generator=generator)) * 1e-3
    exact = x @ w.t()

    def forward(form: Format) -> float:
        rounded = (scaled_round(one, form, "tensor").restored() for one in (x, w))
        return float((next(rounded) @ next(rounded).t() - exact).norm() / exact.norm())

    def zeroed(form: Format) -> float:
        return float((scaled_round(spread, form, "tensor").values == 0).float().mean())

    errors, lost = [forward(form) for form in (E4M3, E5M2)], [zeroed(form) for form in (E4M3, E5M2)]
    tiny = 1e-6 * torch.randn(256, 256, generator=generator)
    bare = [float((round_to(tiny, form) == 0).float().mean()) for form in (E4M3, E5M2)]
    return computed(
        {
            f"{name}.{part}": _bits(name)[part]
            for name in ("e4m3", "e5m2")
            for part in ("exponent", "mantissa")
        },
        Statement(
            says="E4M3 suits the forward pass",
            holds=errors[0] < errors[1],
            found=f"a Gaussian product is off by {errors[0]:.3f} in E4M3, by {errors[1]:.3f} in E5M2",
        ),
        Statement(
            says="E5M2 suits gradients, which spread over more decades",
            holds=lost[1] < lost[0],
            found=f"of log-normal ones {100 * lost[0]:.0f} % are lost in E4M3, {100 * lost[1]:.1f} % in E5M2",
        ),
        Statement(
            says="neither is stable without scaling",
            holds=min(bare) > 0.99,
            found=f"gradients of 1e-6 become zero in both, activations above {E4M3.largest:g} are cut off",
        ),
    )


ROWS = {"B03": b03, "B04": b04, "B05": b05, "B07": b07, "B08": b08, "B11": b11}
