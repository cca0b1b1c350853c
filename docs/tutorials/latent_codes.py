# ---
# jupytext:
#   formats: py:percent
# ---

# %% [markdown]
# # Latent codes of a trained model
#
# A latent code is the scores of all heads for one query and key, after the kind's normaliser. HYLA's may be negative.
# We decode the codes of a packaged HYLA model, trained on [SRAVEN](sraven.py).

# %%
from hyla.analysis import collect_run, decode, draw_embedding, embed, explained


def collect(name, **options):
    return [collect_run(name, 0, split, 1000, **options) for split in ("train", "held_out")]


train, held_out = collect("sraven-hyla")
print(held_out.codes.shape)  # layers, instances, heads
print(sorted(held_out.labels))

# %% [markdown]
# The labels describe the last of the answer's four features, such as its `rule` and its symbol (`target`). Instances have no permutation,
# so this feature has the highest rule; `permute=True` shows them as in training.
#
# Can a linear classifier read off the rule? It is fitted to training tasks and measured on held-out ones; the control has shuffled labels.

# %%


def show(label, train, held_out):
    found = decode(train, held_out, label)
    print(f"{label:6}  F1 by layer", found.measured.macro_f1.round(2), end="")
    print("  control", found.control.macro_f1.round(2))


show("rule", train, held_out)

# %% [markdown]
# These are the codes of the last token with itself. In layer 0 they do not vary, because this token is the same in every instance: F1 is 0.
#
# Its codes towards the same feature of the two panels before, which the authors' code uses, say more. `keys="panels"` puts the two codes of
# 16 side by side.

# %%
train, held_out = collect("sraven-hyla", keys="panels")
print(held_out.codes.shape)
for label in ("rule", "target"):
    show(label, train, held_out)

# %% [markdown]
# The last layer reveals the answer better than the rule. Are the other kinds alike? One model each is a hint, not a result: the HYLA model solves
# 74 % of held-out instances, the others 56 %.

# %%
for name in ("sraven-softmax", "sraven-linear", "sraven-hyla"):
    print(name)
    found = collect(name, keys="panels")
    for label in ("rule", "target"):
        show(label, *found)

# %% [markdown]
# `explained` needs no classifier: it is the share of the codes' variance that lies between the mean codes of a label's classes. Labels with
# a small share can still be decoded.

# %%
print({label: explained(held_out, label).round(2).tolist() for label in ("rule", "target")})

# %% [markdown]
# Two dimensions (t-SNE) of the last layer's codes, coloured by rule and answer:

# %%
from io import BytesIO

from IPython.display import Image

from hyla.drawing import save

figure = draw_embedding(embed(held_out, [-1])[3], held_out, ["rule", "target"], "HYLA, layer 3")
save(figure, file := BytesIO(), "png")
Image(file.getvalue(), width=600)

# %% [markdown]
# Your own model: `attention_codes` takes attention weights, a tensor `[batch, heads, queries, keys]` for each layer; `collect_inputs`
# takes a `hyla.Transformer` and tokens.

# %%
import torch

from hyla import MultiHeadAttention
from hyla.analysis import attention_codes

layer, x = MultiHeadAttention(64, 8), torch.randn(100, 10, 64)
codes = attention_codes([layer.codes(x).movedim(-1, 1)], pairs=[(-1, -1), (-1, 0)])
print(codes.codes.shape)  # layers, 100 sequences x 2 pairs, heads

# %% [markdown]
# Three seeds: [results](../results/codes.md). The decoder and its limits: [analysis](../analysis.md).
