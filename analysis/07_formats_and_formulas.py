# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Formats, formulas and memory
# What arithmetic settles: number formats, memory, sharding, checkpointing and long context.

# %% tags=["parameters"]
study = "quickstart"
experiments = "experiments"
results = "results/reference"
margin = None
family = None

# %%
from paribus.compare.notebook import Board

board = Board(study, experiments, results, margin, family)

# %% [markdown]
# ## Memory and cost

# %%
board.documents(
    "A01", "A05", "A24", "A25", "A26", "A34", "A68", "B01", "B02", "B08",
)  # fmt: skip

# %% [markdown]
# ## Number formats

# %%
board.documents(
    "A56", "A57", "A58", "A60", "A62", "A63", "A64", "A66", "B03", "B04", "B05",
)  # fmt: skip

# %% [markdown]
# ## Checkpointing and sharding

# %%
board.documents(
    "B14", "B15", "B16", "B17", "B18", "B19", "B20", "B21", "B22", "B23", "B52", "B56",
)  # fmt: skip

# %% [markdown]
# ## Long context and compilation

# %%
board.documents(
    "B43", "B44", "B45", "B46", "B47", "B48", "B49", "B50", "B51",
)  # fmt: skip
