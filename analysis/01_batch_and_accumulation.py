# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
# ---

# %% [markdown]
# # Batches and gradient accumulation
# What the article says of batches, of accumulating micro-batches, and of what they save, beside what was
# computed and measured.

# %% tags=["parameters"]
study = "accumulation"
experiments = "experiments"
results = "results/reference"
margin = None
family = None

# %%
from paribus.compare.notebook import Board

board = Board(study, experiments, results, margin, family)

# %% [markdown]
# ## What splitting a batch did

# %%
board.answer()

# %%
board.table("comparison")

# %%
board.forest()

# %% [markdown]
# ## Which layers care who shares a batch
# A batch norm sees the micro-batch alone. The same text classes learned with each norm, whole and split:

# %%
norms = Board("batch_statistics", experiments, results, margin, family)
norms.answer()

# %%
norms.table("comparison")

# %% [markdown]
# ## The documents: batches

# %%
board.documents(
    "A02", "A07", "A08", "A09", "A10", "A11", "A12", "A13", "A14", "A15", "A16", "A17", "A18",
    "A19", "A20", "A21", "A22", "A23",
)  # fmt: skip

# %% [markdown]
# ## The documents: accumulation

# %%
board.documents(
    "A27", "A28", "A29", "A30", "A31", "A32", "A33", "A35", "A38", "A39", "A40", "A41", "A42",
    "A43", "A82", "A86", "A87", "A89",
)  # fmt: skip
