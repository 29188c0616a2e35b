# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # What low precision costs
# Speed, memory and quality by number format, as the article prints them, beside what was measured.

# %% tags=["parameters"]
study = "precision_loss"
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
board.table("precision")

# %%
board.forest()

# %% [markdown]
# ## Where it depends on how one tunes, and on channels that stand out

# %%
board.table("conditions")

# %% [markdown]
# ## Every cell, pure BF16 and the controls among them

# %%
board.table("comparison")

# %% [markdown]
# ## The formats of the quickstart
# A first look with few seeds:

# %%
first = Board("quickstart", experiments, results, margin, family)
first.table("precision")

# %% [markdown]
# ## The documents

# %%
board.documents(
    "A06", "A36", "A37", "A61", "A65", "A67", "A68", "A69", "A70", "A71", "A72", "A73", "A81",
    "A84", "A85", "A91", "B06", "B07", "B09", "B10", "B11", "B12", "B13",
)  # fmt: skip
