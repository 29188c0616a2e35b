# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # NEFTune: the noise and its size
# Seven sizes of noise in the scaling of the paper, one in that of the article, and the rivals: dropout
# and weight decay.

# %% tags=["parameters"]
study = "neftune_alpha"
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
board.table("noise")

# %%
board.forest()

# %%
board.table("readings")

# %% [markdown]
# ## The documents

# %%
board.documents(
    "A44", "A45", "A46", "A47", "A48", "A49", "A50", "A51", "A52", "A53", "A54", "A55", "A59",
    "A80", "A83", "A90",
)  # fmt: skip
