# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Ways of tuning
# What parameter-efficient ways of tuning train, keep and lose, beside the chapter's table.

# %% tags=["parameters"]
study = "peft_methods"
experiments = "experiments"
results = "results/reference"
margin = None
family = None

# %%
from paribus.compare.notebook import Board

board = Board(study, experiments, results, margin, family)

# %% [markdown]
# ## What was found

# %%
board.answer()

# %%
board.table("comparison")

# %%
board.forest()

# %% [markdown]
# ## Full tuning against LoRA while epochs go by

# %%
epochs = Board("overfitting", experiments, results, margin, family)
epochs.table("comparison")

# %% [markdown]
# ## The documents

# %%
board.documents(
    "B24", "B25", "B26", "B27", "B28", "B29", "B30", "B31", "B32", "B33", "B34", "B35", "B36",
    "B37", "B38", "B39", "B40", "B41", "B42", "B53", "B54", "B55", "B57",
)  # fmt: skip
