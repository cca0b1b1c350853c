"""Kinds of attention that the package does not have, made of registered parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hyla import (
    Kind,
    register_activation,
    register_kind,
    register_normaliser,
    register_value_network,
)
from hyla.attention.registry import ACTIVATIONS, NORMALISERS, VALUE_NETWORKS
from hyla.attention.variants import KINDS

REGISTRIES: tuple[dict[str, Any], ...] = (NORMALISERS, VALUE_NETWORKS, ACTIVATIONS, KINDS)


@contextmanager
def own_registries() -> Iterator[None]:
    """Forgets at the end what was registered within."""
    before = [dict(registry) for registry in REGISTRIES]
    try:
        yield
    finally:
        for registry, entries in zip(REGISTRIES, before, strict=True):
            registry.clear()
            registry.update(entries)


def sigmoid(score: Tensor, allowed: Tensor | None) -> Tensor:
    return score.sigmoid()


def centred(score: Tensor, allowed: Tensor | None, eps: float) -> Tensor:
    """Scores minus their mean over the keys that are not masked."""
    count = torch.ones_like(score) if allowed is None else allowed.expand_as(score).to(score.dtype)
    return score - score.sum(-1, keepdim=True) / (count.sum(-1, keepdim=True) + eps)


def gated(code: Tensor, values: Tensor, phi: Any) -> Tensor:
    """Each head receives a_h phi(sum_g a_g v_g) v_h."""
    hidden = phi(torch.einsum("...hqk,...khv->...qkv", code, values))
    return torch.einsum("...hqk,...qkv,...khv->...qhv", code, hidden, values)


def turned(code: Tensor, values: Tensor, phi: Any, deep: Tensor) -> Tensor:
    """Each head receives a_h phi(W_h v_h)."""
    return torch.einsum(
        "...hqk,...khv->...qhv", code, phi(torch.einsum("...huv,...khv->...khu", deep, values))
    )


def wave(x: Tensor) -> Tensor:
    return x * x.sin()


def register() -> dict[str, Kind]:
    """The kinds by name; only the first is registered as a kind."""
    register_normaliser("sigmoid", sigmoid, over_keys=False)
    register_normaliser("centred")(centred)
    register_value_network("gated", gated)
    register_value_network("turned")(turned)
    register_activation("wave")(wave)
    mine = Kind("HYLA with sigmoid codes", "sigmoid", "mlp", nonlinear=True)
    return {
        "mine": register_kind("mine", mine),
        "centred.linear": Kind("centred scores", "centred", "linear", nonlinear=False),
        "rms_head.gated.nonlinear": Kind("gated", "rms_head", "gated", nonlinear=True),
        "centred.turned.nonlinear": Kind("turned", "centred", "turned", nonlinear=True),
    }


NAMES = ("mine", "centred.linear", "rms_head.gated.nonlinear", "centred.turned.nonlinear")
