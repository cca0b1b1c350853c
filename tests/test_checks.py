"""`check_kind` passes what is right, and names what is wrong."""

from collections.abc import Callable, Iterator
from typing import Any

import kinds
import pytest
import torch
from torch import Tensor

from hyla import (
    KINDS,
    Kind,
    KindError,
    check_kind,
    register_activation,
    register_normaliser,
    register_value_network,
)
from hyla.attention import checks


@pytest.fixture(autouse=True)
def mine() -> Iterator[dict[str, Kind]]:
    with kinds.own_registries():
        yield kinds.register()


def problems(kind: Kind, activation: str = "relu") -> set[str]:
    with pytest.raises(KindError) as error:
        check_kind(kind, activation)
    assert kind.title in str(error.value)
    assert all(text in str(error.value) for text in error.value.problems.values())
    return set(error.value.problems)


@pytest.mark.parametrize("name", [*KINDS, *kinds.NAMES])
def test_right_kinds_pass(name: str) -> None:
    state = torch.get_rng_state()
    check_kind(name, "wave" if name in kinds.NAMES else "relu")
    assert torch.get_rng_state().equal(state)


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (1 - x.tanh())  # not squared


def branching(score: Tensor, allowed: Tensor | None) -> Tensor:
    return score if score.sum() > 0 else 1.0 * score


def breaking(score: Tensor, allowed: Tensor | None) -> Tensor:
    torch._dynamo.graph_break()
    return score


def normalised(dim: int, name: str) -> Callable[[Tensor, Tensor | None], Tensor]:
    def normaliser(score: Tensor, allowed: Tensor | None) -> Tensor:
        return score / (1 + getattr(score.square(), name)(dim=dim, keepdim=True))

    return normaliser


def in_place(score: Tensor, allowed: Tensor | None) -> Tensor:
    hidden = score.exp()
    code = hidden * hidden
    hidden += 1  # which the backward of the product still needs
    return code


# The function, what is wrong with it; whether that alone is wrong.
NORMALISERS: dict[str, tuple[Callable[..., Tensor], str, bool]] = {
    "another shape": (lambda score, allowed: score.sum(dim=-1, keepdim=True), "call", True),
    "another dtype": (lambda score, allowed: score.float(), "call", True),
    "not a number": (lambda score, allowed: score.log(), "call", True),
    "an error": (lambda score, allowed: score @ score, "call", True),
    "wrong gradient": (lambda score, allowed: WrongGradient.apply(score), "gradients", False),
    "cut gradient": (lambda score, allowed: score * score.detach(), "gradients", True),
    "in place": (in_place, "gradients", False),
    "random": (lambda score, allowed: score * torch.rand_like(score), "gradients", False),
    "masks ignored": (lambda score, allowed: score.softmax(dim=-1), "masks", False),
    "over queries": (normalised(-2, "sum"), "alone", False),
    "over sequences": (normalised(0, "sum"), "alone", False),
    "heads counted from the front": (normalised(1, "mean"), "population", True),
    "a branch": (branching, "compile", False),
    "a break in the graph": (breaking, "compile", True),
    "an item": (lambda score, allowed: score * score.detach().max().item(), "device", False),
    "a tensor of the CPU": (
        lambda score, allowed: score * torch.ones(score.shape, device="cpu"), "device", True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMALISERS)
def test_a_wrong_normaliser_is_caught(name: str) -> None:
    function, property_, alone = NORMALISERS[name]
    register_normaliser("wrong", function)
    found = problems(Kind(name, "wrong", "mlp", nonlinear=True))
    assert found == {property_} if alone else property_ in found


def test_a_normaliser_over_keys_that_denies_it_is_caught() -> None:
    register_normaliser("denies", kinds.centred, over_keys=False)
    assert problems(Kind("x", "denies", "mlp", nonlinear=False)) == {"over_keys"}


def weight_for_all(code: Tensor, values: Tensor, phi: Any) -> Tensor:
    return torch.einsum("...hqk,...khv->...qhv", code + 1, phi(values))


def heads_last(code: Tensor, values: Tensor, phi: Any) -> Tensor:
    return torch.einsum("...hqk,...khv->...qvh", code, phi(values))


def of_one_population(code: Tensor, values: Tensor, phi: Any) -> Tensor:
    return torch.einsum("bhqk,bkhv->bqhv", code, phi(values))


def over_all_matrices(code: Tensor, values: Tensor, phi: Any, deep: Tensor) -> Tensor:
    hidden = torch.einsum("...hqk,...khv->...qhv", code, phi(values))
    return hidden @ deep.mean(dim=0)[..., 0, :, :] if deep.ndim > 3 else hidden @ deep.mean(dim=0)


@pytest.mark.parametrize(
    "function, property_",
    [
        (weight_for_all, "masks"),
        (heads_last, "call"),
        (of_one_population, "population"),
        (over_all_matrices, "population"),
    ],
)
def test_a_wrong_value_network_is_caught(function: Callable[..., Tensor], property_: str) -> None:
    register_value_network("wrong", function)
    assert property_ in problems(Kind("x", "rms_head", "wrong", nonlinear=True))


def test_a_wrong_activation_is_caught() -> None:
    register_activation("wrong", lambda x: WrongGradient.apply(x))
    assert "gradients" in problems(KINDS["hyla"], "wrong")
    register_activation("over-batch", lambda x: x - x.mean(dim=0))
    assert "alone" in problems(KINDS["hyla"], "over-batch")
    check_kind("linear", "wrong")  # it has none


def test_many_kinds_can_be_checked_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch gives a function up after 8 compilations."""
    monkeypatch.setattr(checks, "PROPERTIES", {"compile": checks.PROPERTIES["compile"]})
    for number in range(11):
        register_normaliser(f"times-{number}", lambda score, allowed, n=number: score * (n + 1))
        check_kind(Kind("x", f"times-{number}", "linear", nonlinear=False))
