"""Attention as a hypernetwork: HYLA and its relatives, in PyTorch."""

from hyla.attention import ACTIVATIONS, KINDS, Kind, attend, latent_codes
from hyla.attention.hypernetwork import ValueNetwork, value_networks
from hyla.attention.layer import KeyValueCache, MultiHeadAttention
from hyla.layers import member, stack
from hyla.model import (
    ModelConfig,
    Transformer,
    build,
    fuzzy_logic_model,
    language_model,
    sraven_model,
)

__version__ = "0.1.0"

__all__ = [
    "ACTIVATIONS",
    "KINDS",
    "KeyValueCache",
    "Kind",
    "ModelConfig",
    "MultiHeadAttention",
    "Transformer",
    "ValueNetwork",
    "attend",
    "build",
    "fuzzy_logic_model",
    "language_model",
    "latent_codes",
    "member",
    "sraven_model",
    "stack",
    "value_networks",
]
