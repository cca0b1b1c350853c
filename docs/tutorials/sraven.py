# ---
# jupytext:
#   formats: py:percent
# ---

# %% [markdown]
# # SRAVEN in ten minutes
#
# SRAVEN is a symbolic version of Raven's matrices: the model sees eight panels and predicts the ninth. A panel has four features (here two),
# each a symbol from 0 to 7 that follows a rule along the rows: `constant`, a progression, the sum or difference of the first two symbols,
# or `distribute three`, in which each row shows the same three different symbols in some order. Arithmetic is modulo the number of values.

# %%
from hyla.tasks.sraven import RULES, Sraven, SravenConfig

task = Sraven(SravenConfig(features=2, values=8, permute=False), seed=0)
batch = task.batch("train", range(3))
print(batch.panels[0].tolist())
print([RULES[rule] for rule in batch.rules[0]])

# %% [markdown]
# `panels` is `[instance, row, column, feature]`. Read the first feature along each row to see its rule at work. The last panel is the answer:

# %%
print(batch.targets[0].tolist())

# %% [markdown]
# By default there are four features, and each column shows them in its own order. This is much harder. The exact solver finds every set
# of rules and orders that fits the context, and how probable each answer is.

# %%
from hyla.tasks.sraven.solver import solve

hard = Sraven(SravenConfig(), seed=0)
batch = hard.batch("all", range(4096))
solution = solve(batch.panels, hard.config)
right = (solution.best == batch.targets).all(dim=-1).float().mean()
print(f"ambiguous: {solution.ambiguous.float().mean():.2f}, best answer right: {right:.2f}")

# %% [markdown]
# A quarter of the instances have several consistent answers. Over all 330 rule combinations no solver is right on average more than 92.9 % of
# the time (the `ceiling` of `hyla sraven stats --instances 262144`); these are a sample.
#
# A model sees one-hot symbols in reading order and four empty tokens for the answer. Any PyTorch loop can train on them:

# %%
print(batch.inputs.shape, batch.targets.shape)
print(hard.batch("held_out", range(7, 8)).panels[0].equal(hard.batch("held_out", 8).panels[7]))

# %% [markdown]
# Instance 7 depends only on the seed, the split and its number. More: [SRAVEN](../sraven.md),
# and as files: [export](../export.md).
