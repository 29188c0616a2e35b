"""Levels beside the defaults that the laws are asked of, as a study would write them, by axis.

A new technique is taken at its defaults without a line here; a setting of it that changes what happens gets one.
"""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "gradient_accumulation_steps": [{"steps": 2}, {"steps": 4}],
    "neftune_noise_alpha": [{"alpha": 5}],
    "precision": [
        {"kind": "bf16", "compute": "emulated"},
        {"kind": "fp16", "compute": "emulated"},
        {"kind": "fp8", "compute": "emulated"},
        {"kind": "fp8", "compute": "emulated", "scaling": "none"},
    ],
    "tuning": [
        {"kind": "lora", "r": 4, "lora_alpha": 8},
        {"kind": "lora", "r": 4, "target_modules": ["q_proj", "v_proj"]},
    ],
    "dropout": [{"p": 0.1}, {"p": 0.1, "where": "hidden"}],
    "gradient_checkpointing": [],
}
