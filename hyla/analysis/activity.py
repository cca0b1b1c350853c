"""Which units of HYLA's value networks are ever on.

Shapes: B sequences, Q queries, K keys, H heads, V hidden units (the head size).
"""

import torch
from torch import Tensor, einsum

from hyla.analysis.codes import Array, to_numpy
from hyla.attention.variants import find_kind
from hyla.errors import bad_value
from hyla.model import Block, ModelConfig, Transformer, check_single


def has_units(config: ModelConfig) -> bool:
    """Whether the value networks of a model have a hidden layer with a ReLU."""
    kind = find_kind(config.kind)
    return kind.value_network in ("mlp", "deep") and kind.nonlinear and config.activation == "relu"


@torch.no_grad()
def active_units(model: Transformer, tokens: Tensor) -> dict[int, Array]:
    """By layer: the part of all key-query pairs in which a hidden unit of the value network is on.

    The value network has a ReLU between two layers that the latent code generates. A unit that is
    never on passes no gradient either: it is dead, and weight decay takes its weights to 0. Units
    are numbered within a head, `[head size]`; of the deep value network they are the first layer's.
    The pairs that a causal model masks count as off.

    >>> import hyla
    >>> model = hyla.build(hyla.ModelConfig(5, 5, layers=2, width=8, heads=3, head_size=4), seed=0)
    >>> [part.shape for part in active_units(model, torch.randn(7, 11, 5)).values()]
    [(4,), (4,)]
    """
    if not has_units(model.config):
        title = find_kind(model.config.kind).title
        raise bad_value("model", f"one with {title}", "one whose value networks have a ReLU")
    check_single(model)
    found = {}
    x_BTD = model.embed(tokens)
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        attention, normed = block.attention, block.attention_norm(x_BTD)
        v_BKHV = attention.value(normed).unflatten(-1, (attention.heads, attention.head_size))
        code_BQKH = attention.codes(normed).to(v_BKHV.dtype)
        hidden_BQKV = einsum("bqkh,bkhv->bqkv", code_BQKH, v_BKHV)
        found[index] = to_numpy((hidden_BQKV > 0).double().mean(dim=(0, 1, 2)))
        x_BTD = block(x_BTD)
    return found
