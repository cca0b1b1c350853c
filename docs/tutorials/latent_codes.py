# ---
# jupytext:
#   formats: py:percent
# ---

# %% [markdown]
# # Latent codes of a trained model
#
# A latent code is the scores of all heads for one query and one key. We collect codes of a packaged HYLA model, trained on SRAVEN,
# and ask what they reveal.

# %%
from hyla.analysis import collect_run, decode, explained

train, held_out = (collect_run("sraven-hyla", 0, split, 1000) for split in ("train", "held_out"))
print(held_out.codes.shape)  # layers, instances, heads
print(sorted(held_out.labels))

# %% [markdown]
# Can a linear classifier read off the rule of an instance? It is fitted to training tasks and measured on held-out ones, beside a control with
# shuffled labels.

# %%
found = decode(train, held_out, "rule")
for layer, f1, control in zip(found.layers, found.measured.macro_f1, found.control.macro_f1):
    print(f"layer {layer}: F1 {f1:.2f}, shuffled labels {control:.2f}")

# %% [markdown]
# The code of the last token with itself says little. The codes towards the two panels before it, which the authors' code uses, say more:

# %%
train, held_out = (
    collect_run("sraven-hyla", 0, split, 1000, keys="panels") for split in ("train", "held_out")
)
print(decode(train, held_out, "rule").measured.macro_f1.round(2))
print({name: explained(held_out, name).round(2).tolist() for name in ("rule", "target")})

# %% [markdown]
# The last line is the share of the codes' variance that the rule and the answer explain, by layer. What these numbers can and cannot say:
# [analysis](../analysis.md).
