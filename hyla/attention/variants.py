"""The attention kinds: which normaliser makes the latent code, which value network consumes it.

Every attention row of the paper's ablation table is one entry of `KINDS`. A combination that is
not there is made with `Kind`, which `attend` and `MultiHeadAttention` take instead of a name.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla.errors import unknown_name
from hyla.layers import gelu

NORMALISERS = ("softmax", "none", "rms_head")
VALUE_NETWORKS = ("linear", "mlp", "deep")


@dataclass(frozen=True)
class Kind:
    """How a layer makes its latent code and what the code configures.

    normaliser: `softmax` over keys, `none`, or `rms_head`, the root mean square over heads.
    value_network: `linear` (standard attention), `mlp` (HYLA's hidden layer) or `deep` (two
        hidden layers).
    nonlinear: whether the nonlinearity is applied; for `linear` it acts on each head's value.

    >>> Kind("softmax code, deep value network", "softmax", "deep", nonlinear=True).normaliser
    'softmax'
    """

    title: str
    normaliser: str
    value_network: str
    nonlinear: bool

    def __post_init__(self) -> None:
        if self.normaliser not in NORMALISERS:
            raise unknown_name("normaliser", self.normaliser, NORMALISERS)
        if self.value_network not in VALUE_NETWORKS:
            raise unknown_name("value_network", self.value_network, VALUE_NETWORKS)


KINDS: dict[str, Kind] = {
    "softmax": Kind("Softmax attention", "softmax", "linear", nonlinear=False),
    "linear": Kind("Linear attention", "none", "linear", nonlinear=False),
    "hyla": Kind("HYLA", "rms_head", "mlp", nonlinear=True),
    "linear+rms_head": Kind("Linear attention + RMSHead", "rms_head", "linear", nonlinear=False),
    "linear+rms_head+nonlinear_value": Kind(
        "Linear attention + RMSHead + nonlinear value", "rms_head", "linear", nonlinear=True
    ),
    "hyla-rms_head": Kind("HYLA - RMSHead", "none", "mlp", nonlinear=True),
    "hyla-nonlinearity": Kind("HYLA - nonlinearity", "rms_head", "mlp", nonlinear=False),
    "hyla-nonlinearity-rms_head": Kind(
        "HYLA - nonlinearity - RMSHead", "none", "mlp", nonlinear=False
    ),
    "hyla-rms_head+softmax": Kind("HYLA - RMSHead + softmax", "softmax", "mlp", nonlinear=True),
    "hyla+deep": Kind("HYLA + deep value network", "rms_head", "deep", nonlinear=True),
}
BUILT_IN_KINDS = tuple(KINDS)  # whose names mean the same everywhere


def identity(x: Tensor) -> Tensor:
    """The absent nonlinearity."""
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def find_kind(kind: str | Kind) -> Kind:
    """The entry of `KINDS` with this name; a `Kind` is returned as it is.

    >>> find_kind("hyla").value_network
    'mlp'
    """
    if isinstance(kind, Kind):
        return kind
    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    return KINDS[kind]


def find_activation(kind: Kind, activation: str) -> Callable[[Tensor], Tensor]:
    """The nonlinearity phi that a kind applies: the named one, or none if the kind has none."""
    if activation not in ACTIVATIONS:
        raise unknown_name("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation] if kind.nonlinear else identity
