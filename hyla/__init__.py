"""Attention as a hypernetwork: HYLA and its relatives, in PyTorch."""

from pathlib import Path

from hyla.attention import (
    ACTIVATIONS,
    KINDS,
    Kind,
    attend,
    import_kind,
    latent_codes,
    register_activation,
    register_kind,
    register_normaliser,
    register_value_network,
)
from hyla.attention.cache import KeyValueCache
from hyla.attention.checks import KindError, check_kind
from hyla.attention.hypernetwork import ValueNetwork, value_networks
from hyla.attention.layer import MultiHeadAttention
from hyla.evaluation import evaluate
from hyla.layers import member, stack
from hyla.model import (
    ModelConfig,
    Transformer,
    build,
    fuzzy_logic_model,
    language_model,
    sraven_model,
)

__version__ = "0.2.0"

__all__ = [
    "ACTIVATIONS",
    "KINDS",
    "KeyValueCache",
    "Kind",
    "KindError",
    "ModelConfig",
    "MultiHeadAttention",
    "Transformer",
    "ValueNetwork",
    "attend",
    "build",
    "check_kind",
    "evaluate",
    "fuzzy_logic_model",
    "import_kind",
    "language_model",
    "latent_codes",
    "load",
    "member",
    "register_activation",
    "register_kind",
    "register_normaliser",
    "register_value_network",
    "sraven_model",
    "stack",
    "value_networks",
]


def load(name_or_path: Path | str, member: int = 0, step: int | None = None) -> Transformer:
    """Load a trained model: a packaged one by its name, or one member of a run folder.

    name_or_path: a name in `hyla.pretrained.NAMES`, or the path of a run folder. An existing path
        takes precedence over a name.
    member: number of the member in the run; a packaged model has only member 0.
    step: load the checkpoint of this step instead of the newest one.

    Returns an ordinary float32 model on the CPU, in eval mode.

    >>> import hyla
    >>> model = hyla.load("sraven-hyla")
    >>> model.config.kind, model.config.layers, model.training
    ('hyla', 4, False)
    """
    from hyla.train.trained import load_member  # not above: training needs safetensors

    return load_member(name_or_path, member, step)[1]
