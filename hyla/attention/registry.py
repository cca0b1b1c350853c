"""The registries of parts: normalisers, value networks and activations by name.

The built-in parts are registered next to the definition of attention, in `reference`.
Shapes: B leading axes, Q queries, K keys, H heads, V size of the values.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from torch import Tensor

from hyla.errors import bad_value, unknown_name

# Neither a dot, which joins the parts of a kind without a name, nor a colon, which asks for an
# import: so a stored name never means either.
NAME = re.compile(r"[A-Za-z0-9_+-]+")

Activation = Callable[[Tensor], Tensor]
Function = TypeVar("Function", bound=Callable[..., Tensor])
Part = TypeVar("Part")


@dataclass(frozen=True)
class Normaliser:
    """A function from scores to the latent code. uses_eps: it has a parameter `eps`."""

    function: Callable[..., Tensor]
    over_keys: bool
    uses_eps: bool


@dataclass(frozen=True)
class ValueFunction:
    """A function that applies value networks. uses_deep: it has a parameter `deep`."""

    function: Callable[..., Tensor]
    uses_deep: bool


NORMALISERS: dict[str, Normaliser] = {}
VALUE_NETWORKS: dict[str, ValueFunction] = {}
ACTIVATIONS: dict[str, Activation] = {}


def add(registry: dict[str, Part], what: str, name: str, part: Part) -> None:
    """Enter a part under a new name; the same part may be entered again."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise bad_value(f"name of the {what}", repr(name), "letters, digits, '_', '+' and '-'")
    if name in registry and registry[name] != part:
        # A stored run means the part by its name.
        expected = f"a name that no other {what} has (restart Python to replace a function)"
        raise bad_value(f"name of the {what}", repr(name), expected)
    registry[name] = part


def not_registered(argument: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for a name that is in no registry, with the line that would register it."""
    line = f"import mypackage  # which calls hyla.register_{argument}({name!r}, ...)"
    return ValueError(f"{unknown_name(argument, name, known)} If it is your own, first {line}")


def find(registry: Mapping[str, Part], argument: str, name: str) -> Part:
    """The part with this name."""
    if name not in registry:
        raise not_registered(argument, name, registry)
    return registry[name]


@overload
def register_normaliser(name: str, function: Function, *, over_keys: bool = True) -> Function: ...
@overload
def register_normaliser(
    name: str, function: None = None, *, over_keys: bool = True
) -> Callable[[Function], Function]: ...
def register_normaliser(name: str, function: Any = None, *, over_keys: bool = True) -> Any:
    """Register a function from scores to latent codes; without `function`, a decorator.

    function: `(scores, allowed) -> code`. scores: `[..., heads, queries, keys]`, at least float32,
        0 where masked. allowed: boolean, False where masked, broadcastable to the scores; None if
        nothing is masked. The code of masked pairs is set to 0 afterwards. A function with a third
        parameter `eps` is given that of the call.
    over_keys: whether the code of a pair depends on other keys. False saves computing all keys
        where the codes of a few are wanted.
    """
    if function is None:
        return lambda function: register_normaliser(name, function, over_keys=over_keys)
    part = Normaliser(function, over_keys, _has_parameter(function, "eps"))
    add(NORMALISERS, "normaliser", name, part)
    return function


@overload
def register_value_network(name: str, function: Function) -> Function: ...
@overload
def register_value_network(name: str, function: None = None) -> Callable[[Function], Function]: ...
def register_value_network(name: str, function: Any = None) -> Any:
    """Register a function that applies value networks; without `function`, a decorator.

    function: `(code, values, phi) -> output`. code: `[..., heads, queries, keys]`, 0 where masked.
        values: `[..., keys, heads, size]`. phi: the activation, or the identity for a kind that is
        not nonlinear. output: `[..., queries, heads, size]`, summed over keys. A function with a
        fourth parameter `deep` is given `[..., heads, size, size]`, which layers then learn.
    """
    if function is None:
        return lambda function: register_value_network(name, function)
    part = ValueFunction(function, _has_parameter(function, "deep"))
    add(VALUE_NETWORKS, "value network", name, part)
    return function


@overload
def register_activation(name: str, function: Function) -> Function: ...
@overload
def register_activation(name: str, function: None = None) -> Callable[[Function], Function]: ...
def register_activation(name: str, function: Any = None) -> Any:
    """Register an elementwise function, for `activation`; without `function`, a decorator."""
    if function is None:
        return lambda function: register_activation(name, function)
    add(ACTIVATIONS, "activation", name, function)
    return function


def _has_parameter(function: Callable[..., Tensor], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except ValueError:  # some functions written in C do not tell
        return False
