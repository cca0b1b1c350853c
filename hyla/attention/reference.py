"""Attention as latent code and value network, in plain einsum: the definition of correct.

Shapes: B any leading axes (batch, or population and batch), Q queries, K keys, H heads,
D head size of queries and keys, V head size of values (the hidden size of the value network).
The paper's a_{h,q,k} is `a_BHQK`.
"""

from collections.abc import Callable

import torch
from torch import Tensor, einsum

from hyla.attention.variants import NORMALISERS, VALUE_NETWORKS
from hyla.errors import bad_value, unknown_name


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
    if normaliser == "softmax":
        return _softmax_over_keys(score_BHQK, allowed)
    if allowed is not None:
        score_BHQK = score_BHQK.masked_fill(~allowed, 0.0)
    if normaliser == "rms_head":
        mean_square = score_BHQK.square().mean(dim=-3, keepdim=True)
        return score_BHQK * torch.rsqrt(mean_square + eps)
    if normaliser == "none":
        return score_BHQK
    raise unknown_name("normaliser", normaliser, NORMALISERS)


def _softmax_over_keys(score_BHQK: Tensor, allowed: Tensor | None) -> Tensor:
    if allowed is None:
        return score_BHQK.softmax(dim=-1)
    # The lowest finite score, not -inf: a query without any key then gets 0 instead of NaN.
    lowest = torch.finfo(score_BHQK.dtype).min
    code_BHQK = score_BHQK.masked_fill(~allowed, lowest).softmax(dim=-1)
    return code_BHQK.masked_fill(~allowed, 0.0)


def apply_value_network(
    a_BHQK: Tensor,
    v_BKHV: Tensor,
    value_network: str,
    phi: Callable[[Tensor], Tensor],
    deep_HVV: Tensor | None = None,
) -> Tensor:
    """What every query receives from its key-query specific value networks, summed over keys.

    The result still has the head axis, which the output projection contracts.
    """
    if value_network == "linear":
        return einsum("...hqk,...khv->...qhv", a_BHQK, phi(v_BKHV))
    if value_network not in VALUE_NETWORKS:
        raise unknown_name("value_network", value_network, VALUE_NETWORKS)
    z_BQKV = phi(einsum("...hqk,...khv->...qkv", a_BHQK, v_BKHV))
    if value_network == "deep":
        if deep_HVV is None:
            raise bad_value("deep", None, "the second value matrices of a deep value network")
        az_BQKHV = einsum("...hqk,...qkv->...qkhv", a_BHQK, z_BQKV)
        z_BQKV = phi(einsum("...qkhv,...huv->...qku", az_BQKHV, deep_HVV))
    return einsum("...hqk,...qkv->...qhv", a_BHQK, z_BQKV)
