"""Attention as latent code and value network, in plain einsum: the definition of correct.

Shapes: B any leading axes (batch, or population and batch), Q queries, K keys, H heads,
D head size of queries and keys, V head size of values (the hidden size of the value network).
The paper's a_{h,q,k} is `a_BHQK`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, einsum

from hyla.attention.registry import (
    NORMALISERS,
    VALUE_NETWORKS,
    Activation,
    find,
    register_activation,
    register_normaliser,
    register_value_network,
)
from hyla.errors import bad_value
from hyla.layers import gelu

# Built-in normalisers that make 0 of masked scores by themselves: a pass over all pairs is saved.
ZERO_STAYS_ZERO = ("none", "rms_head")


def allowed_pairs(
    query_positions_Q: Tensor,
    key_positions_K: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor | None:
    """Which query-key pairs take part, broadcastable to BHQK; None when all of them do."""
    conditions: list[Tensor] = []
    if causal:
        conditions.append(key_positions_K <= query_positions_Q[:, None])
    if mask is not None:
        conditions.append(mask)
    if lengths is not None:
        conditions.append(key_positions_K < lengths[..., None, None, None])
    if bias is not None:
        conditions.append(bias != -torch.inf)
    if not conditions:
        return None
    allowed = conditions[0]
    for condition in conditions[1:]:
        allowed = allowed & condition
    return allowed


def latent_code(
    q_BQHD: Tensor,
    k_BKHD: Tensor,
    normaliser: str,
    *,
    scale: float,
    eps: float,
    bias: Tensor | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """The latent code a_BHQK = sigma(q k^T * scale + bias), with 0 where a pair is masked.

    Half-precision scores are normalised in float32, and so is the bias added.
    """
    # Scaled before the product, whose sum could leave the range of float16.
    score_BHQK = einsum("...qhd,...khd->...hqk", q_BQHD * scale, k_BKHD)
    if score_BHQK.dtype in (torch.float16, torch.bfloat16):
        score_BHQK = score_BHQK.float()
    if bias is not None:
        score_BHQK = score_BHQK + bias.to(score_BHQK.dtype)
    part = find(NORMALISERS, "normaliser", normaliser)
    # So no normaliser computes with -inf, whose gradient is often NaN; and none needs to mask.
    if allowed is not None:
        score_BHQK = score_BHQK.masked_fill(~allowed, 0.0)
    options = {"eps": eps} if part.uses_eps else {}
    code_BHQK = part.function(score_BHQK, allowed, **options)
    if allowed is None or normaliser in ZERO_STAYS_ZERO:
        return code_BHQK
    return code_BHQK.masked_fill(~allowed, 0.0)


@register_normaliser("softmax", over_keys=True)
def softmax_over_keys(score_BHQK: Tensor, allowed: Tensor | None) -> Tensor:
    """Codes of a query that sum to 1."""
    if allowed is not None:
        # The lowest finite score, not -inf: a query without any key then has no NaN.
        lowest = torch.finfo(score_BHQK.dtype).min
        score_BHQK = score_BHQK.masked_fill(~allowed, lowest)
    return score_BHQK.softmax(dim=-1)


@register_normaliser("none", over_keys=False)
def no_normaliser(score_BHQK: Tensor, allowed: Tensor | None) -> Tensor:
    """The scores themselves."""
    return score_BHQK


@register_normaliser("rms_head", over_keys=False)
def rms_over_heads(score_BHQK: Tensor, allowed: Tensor | None, eps: float) -> Tensor:
    """Codes of a pair whose mean square over heads is 1."""
    mean_square = score_BHQK.square().mean(dim=-3, keepdim=True)
    return score_BHQK * torch.rsqrt(mean_square + eps)


def apply_value_network(
    a_BHQK: Tensor,
    v_BKHV: Tensor,
    value_network: str,
    phi: Activation,
    deep_HVV: Tensor | None = None,
) -> Tensor:
    """What every query receives from its key-query specific value networks, summed over keys.

    The result still has the head axis, which the output projection contracts.
    """
    part = find(VALUE_NETWORKS, "value_network", value_network)
    if not part.uses_deep:
        return part.function(a_BHQK, v_BKHV, phi)
    if deep_HVV is None:
        raise bad_value("deep", None, "the second value matrices of a deep value network")
    return part.function(a_BHQK, v_BKHV, phi, deep=deep_HVV)


@register_value_network("linear")
def sum_of_values(a_BHQK: Tensor, v_BKHV: Tensor, phi: Activation) -> Tensor:
    """Standard attention: z_q = sum over keys of a_qk phi(v_k), in each head."""
    return einsum("...hqk,...khv->...qhv", a_BHQK, phi(v_BKHV))


@register_value_network("mlp")
def hidden_layer(a_BHQK: Tensor, v_BKHV: Tensor, phi: Activation) -> Tensor:
    """HYLA: the code mixes the values of all heads into a hidden layer, and reads it out."""
    z_BQKV = phi(einsum("...hqk,...khv->...qkv", a_BHQK, v_BKHV))
    return einsum("...hqk,...qkv->...qhv", a_BHQK, z_BQKV)


@register_value_network("deep")
def two_hidden_layers(a_BHQK: Tensor, v_BKHV: Tensor, phi: Activation, deep: Tensor) -> Tensor:
    """HYLA with a second hidden layer, whose weights are a mixture of the matrices `deep`."""
    z_BQKV = phi(einsum("...hqk,...khv->...qkv", a_BHQK, v_BKHV))
    az_BQKHV = einsum("...hqk,...qkv->...qkhv", a_BHQK, z_BQKV)
    z_BQKV = phi(einsum("...qkhv,...huv->...qku", az_BQKHV, deep))
    return einsum("...hqk,...qkv->...qhv", a_BHQK, z_BQKV)


register_activation("relu", torch.relu)
register_activation("gelu", gelu)
register_activation("silu", F.silu)
register_activation("tanh", torch.tanh)
