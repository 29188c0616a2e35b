"""Levels beside the defaults that the laws are asked of, as a study would write them, by axis.

A new technique is taken at its defaults without a line here; a setting that changes what happens gets one.
The path of an existing adapter stands for one that fits the model at hand (`Case.on`).
"""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "gradient_accumulation_steps": [
        {"steps": 4},
        {"steps": 4, "normalise": "micro_batches"},
        {"steps": 4, "normalise": "micro_batches", "leftover": "unscaled"},
        {"steps": 4, "gradient_dtype": "bfloat16"},
    ],
    "neftune_noise_alpha": [
        {"alpha": 5},
        {"alpha": 5, "scaling": "article"},
        {"alpha": 5, "length": "padded"},
        {"alpha": 5, "distribution": "gaussian", "schedule": "cosine"},
        {"alpha": 5, "schedule": "linear"},
    ],
    "precision": [
        {"kind": "bf16", "compute": "emulated"},
        {"kind": "fp16", "compute": "emulated"},
        {"kind": "fp8", "compute": "emulated"},
        {"kind": "fp8", "compute": "emulated", "scaling": "none"},
    ],
    "tuning": [
        {"kind": "lora", "r": 4, "lora_alpha": 8},
        {"kind": "lora", "r": 4, "target_modules": ["q_proj", "v_proj"]},
        {"kind": "lora", "r": 4, "lora_dropout": 0.1},
        {"kind": "lora", "r": 4, "use_rslora": True},
        {"kind": "lora", "r": 4, "use_dora": True},
        {"kind": "lora", "r": 4, "init_lora_weights": "pissa"},
        {"kind": "lora", "r": 4, "init_lora_weights": "both_random"},
        {"kind": "lora", "r": 4, "loraplus_lr_ratio": 16},
        {"kind": "qlora", "r": 4},
        {"kind": "qlora", "r": 4, "quantisation": "fp4", "double_quantisation": False},
        {"kind": "qlora", "r": 4, "quantisation": "int8"},
        {"kind": "qlora", "r": 4, "quantisation": "int4"},
        {"kind": "norms", "where": "layers"},
        {"kind": "prefix", "prefix_projection": True},
        {"kind": "p_tuning", "encoder_reparameterization_type": "LSTM"},
        {"kind": "adapter", "placement": "pfeiffer"},
        {"kind": "adapter", "placement": "parallel"},
        {"kind": "last_layers", "layers": 1, "head": True},
        {"kind": "peft", "method": "LoHaConfig", "settings": {"r": 4, "target_modules": "all-linear"}},
        {"kind": "peft", "method": "LNTuningConfig"},
        {"kind": "existing", "path": "lora"},
    ],
    "dropout": [{"p": 0.1}, {"p": 0.1, "where": "hidden"}],
    "gradient_checkpointing": [{"kind": "layers", "use_reentrant": True}],
    "master_weights": [
        {"kind": "none", "rounding": "stochastic", "optimizer_states": "same"},
        {"kind": "none", "format": "fp16"},
        {"kind": "none", "format": "e4m3"},
    ],
}
