"""The attention kinds: which normaliser makes the latent code, which value network consumes it.

Every attention row of the paper's ablation table is one entry of `KINDS`. `register_kind` adds
others; a `Kind` works without a name too, wherever a name does.
"""

import re
from dataclasses import dataclass
from importlib import import_module

from torch import Tensor

from hyla.attention import reference  # noqa: F401  registers the parts that KINDS are made of
from hyla.attention.registry import (
    ACTIVATIONS,
    NAME,
    NORMALISERS,
    VALUE_NETWORKS,
    Activation,
    add,
    find,
    not_registered,
)
from hyla.errors import bad_value

PARTS = re.compile(rf"({NAME.pattern})\.({NAME.pattern})(\.nonlinear)?")
IMPORT = re.compile(r"([A-Za-z_][\w.]*):(\S+)")


@dataclass(frozen=True)
class Kind:
    """How a layer makes its latent code and what the code configures.

    normaliser: `softmax` over keys, `none`, `rms_head`, the root mean square over heads, or one of
        your own (`register_normaliser`).
    value_network: `linear` (standard attention), `mlp` (HYLA's hidden layer), `deep` (two hidden
        layers) or one of your own (`register_value_network`).
    nonlinear: whether the nonlinearity is applied; for `linear` it acts on each head's value.

    >>> Kind("softmax code, deep value network", "softmax", "deep", nonlinear=True).normaliser
    'softmax'
    """

    title: str
    normaliser: str
    value_network: str
    nonlinear: bool

    def __post_init__(self) -> None:
        find(NORMALISERS, "normaliser", self.normaliser)
        find(VALUE_NETWORKS, "value_network", self.value_network)

    @property
    def parts(self) -> tuple[str, str, bool]:
        """What decides the result: all but the title."""
        return self.normaliser, self.value_network, self.nonlinear

    @property
    def over_keys(self) -> bool:
        """Whether the code of a pair depends on the other keys of the query."""
        return find(NORMALISERS, "normaliser", self.normaliser).over_keys

    @property
    def uses_deep(self) -> bool:
        """Whether the value network has matrices `deep` of its own."""
        return find(VALUE_NETWORKS, "value_network", self.value_network).uses_deep


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


def register_kind(name: str, kind: Kind) -> Kind:
    """Give a kind a name, under which models, runs and commands then find it.

    >>> register_kind("hyla", Kind("HYLA", "rms_head", "mlp", nonlinear=True)).title  # as it was
    'HYLA'
    """
    if not isinstance(kind, Kind):
        raise bad_value("kind", repr(kind), "a hyla.Kind")
    add(KINDS, "kind", name, kind)
    return kind


def find_kind(kind: str | Kind) -> Kind:
    """The kind with this name, which may also be made of its parts; a `Kind` is returned as it is.

    Nothing is imported, so a name may come from a file.

    >>> find_kind("hyla").value_network, find_kind("softmax.deep.nonlinear").value_network
    ('mlp', 'deep')
    """
    if isinstance(kind, Kind):
        return kind
    if not isinstance(kind, str):
        raise bad_value("kind", repr(kind), "a name or a hyla.Kind")
    if kind in KINDS:
        return KINDS[kind]
    if match := PARTS.fullmatch(kind):
        normaliser, value_network, nonlinear = match.groups()
        title = f"{normaliser} codes, {value_network} value network"
        title += ", nonlinear" if nonlinear else ""
        return Kind(title, normaliser, value_network, nonlinear is not None)
    if IMPORT.fullmatch(kind):
        raise bad_value("kind", repr(kind), f"a name, such as hyla.import_kind({kind!r}) returns")
    raise not_registered("kind", kind, KINDS)


def name_of(kind: str | Kind) -> str:
    """The name by which configurations store a kind: that of its parts if it was given none.

    The parts are all that decides the result. So a model of registered parts can be loaded where
    nobody has named their combination.

    >>> name_of(Kind("anything", "rms_head", "mlp", nonlinear=True))
    'hyla'
    >>> name_of(Kind("anything", "softmax", "deep", nonlinear=True))
    'softmax.deep.nonlinear'
    """
    found = find_kind(kind)
    if isinstance(kind, str) and kind in KINDS:
        return kind
    for name, known in KINDS.items():
        if known == found or (name in BUILT_IN_KINDS and known.parts == found.parts):
            return name
    nonlinear = ["nonlinear"] if found.nonlinear else []
    return ".".join([found.normaliser, found.value_network, *nonlinear])


def import_kind(text: str) -> str:
    """Import the module of `package.module:name` and return the name of its kind.

    name: of a `Kind` in the module, or one that the module registers.
    """
    match = IMPORT.fullmatch(text)
    if match is None:
        raise bad_value("kind", repr(text), "package.module:name")
    module_name, name = match.groups()
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # something that the module needs
        raise bad_value("kind", repr(text), f"a module that exists, not {error.name}") from None
    kind = getattr(module, name, None)
    if isinstance(kind, Kind):
        return name_of(kind)
    if name not in KINDS:
        found = [key for key, value in vars(module).items() if isinstance(value, Kind)]
        here = f"{module_name} has {', '.join(found) or 'none'}"
        raise bad_value("kind", repr(text), f"the name of a hyla.Kind in the module ({here})")
    return name


class KindName:
    """A field of a configuration: it takes a name or a `Kind`, and holds a name."""

    def __get__(self, instance: object, owner: type) -> str:
        return "hyla" if instance is None else instance.__dict__["kind"]

    def __set__(self, instance: object, kind: str | Kind) -> None:
        instance.__dict__["kind"] = name_of(kind)


def find_activation(kind: Kind, activation: str) -> Activation:
    """The nonlinearity phi that a kind applies: the named one, or none if the kind has none."""
    phi = find(ACTIVATIONS, "activation", activation)
    return phi if kind.nonlinear else identity
