# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Techniques together
# The documents multiply the gains of single techniques. A grid shows whether effects add up.

# %% tags=["parameters"]
study = "four_axes"
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
# ## The documents

# %%
board.documents(
    "A74", "A75", "A76", "A77", "A78", "A79", "A88", "A92", "A93",
)  # fmt: skip
