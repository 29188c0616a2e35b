# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Overfitting
# The article prints losses at epochs 1, 3 and 5. The shape of such a table can be tested on any model;
# its size belongs to a model it does not name.

# %% tags=["parameters"]
study = "overfitting"
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
board.table("memorisation")

# %%
board.table("overfitting")

# %%
board.curves()

# %% [markdown]
# ## The documents

# %%
board.documents(
    "A03", "A04", "B30",
)  # fmt: skip
