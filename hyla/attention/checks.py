"""What every kind of attention must satisfy, checked in float64 on small inputs.

Shapes: B sequences, Q queries, K keys, H heads, D and V head sizes, M members of a population.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hyla.attention import attend, latent_codes
from hyla.attention.cache import KeyValueCache
from hyla.attention.layer import MultiHeadAttention
from hyla.attention.variants import Kind, find_kind, name_of
from hyla.layers import stack

# Primes, all different: no two axes can be confused.
B, Q, K, H, D, V, M = 2, 3, 5, 7, 2, 3, 3
SHOWN = 3  # keys that are not masked
ROUNDED = 1e-5  # what differs by less may be computed in float32, whose unit is 6e-8
TOLERANCE = 1e-9  # of float64, whose unit is 1e-16, after a few sums and a division


class KindError(ValueError):
    """A kind that breaks a property of attention.

    problems: what is wrong, by the name of the property.
    """

    def __init__(self, kind: str, problems: dict[str, str]) -> None:
        self.problems = problems
        lines = "\n".join(f"- {name}: {text}" for name, text in problems.items())
        super().__init__(f"kind: {kind} breaks what attention must satisfy:\n{lines}")


class _Subject(NamedTuple):
    """A kind, and inputs to try it with. mask: differs between sequences, heads and queries."""

    kind: Kind
    activation: str
    q: Tensor
    k: Tensor
    v: Tensor
    deep: Tensor | None
    bias: Tensor
    mask: Tensor

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Through the reference, in which alone registered parts are computed."""
        options = {"deep": self.deep} | options
        return attend(
            q, k, v, kind=self.kind, activation=self.activation, backend="reference", **options
        )

    def layer(self) -> MultiHeadAttention:
        return MultiHeadAttention(
            11, H, head_size=D, kind=self.kind, activation=self.activation, causal=True,
            positions="t5", backend="reference", dtype=torch.float64,
        )  # fmt: skip


def check_kind(kind: str | Kind, activation: str = "relu") -> None:
    """Check a kind of attention; raise `KindError`, which says in words what is wrong.

    Checked are the gradients of all inputs against finite differences, masks, ragged lengths,
    queries and sequences on their own, decoding with a cache, members of a population, the claim
    of `over_keys=False`, that no number is read from a tensor, which a GPU would wait for, and
    `torch.compile(fullgraph=True)`. It takes about a second.

    >>> check_kind("hyla")
    """
    found, problems = find_kind(kind), {}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        subject = _subject(found, activation)
        for name, look in PROPERTIES.items():
            try:
                problem = look(subject)
            except Exception as error:  # a part may raise anything
                words = " ".join(str(error).split())
                problem = f"{type(error).__name__} is raised: {words[:500]}"
            if problem is not None:
                problems[name] = problem
            if name == "call" and problems:  # all else would fail in the same way
                break
    if problems:
        raise KindError(f"{name_of(kind)!r} ({found.title})", problems)


def _subject(kind: Kind, activation: str) -> _Subject:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64)

    mask = torch.rand(B, H, Q, K) < 0.7
    mask[..., 0] = True
    return _Subject(
        kind, activation, normal(B, Q, H, D), normal(B, K, H, D), normal(B, K, H, V),
        normal(H, V, V) if kind.uses_deep else None, normal(1, H, Q, K), mask,
    )  # fmt: skip


def _unlike(found: Tensor, expected: Tensor) -> str:
    """By how much they differ, in words; empty if they do not."""
    if torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
        return ""
    most = float((found - expected).detach().abs().max())
    rounded = most < ROUNDED * (1 + float(expected.detach().abs().max()))
    return f" (by {most:.1g}{': is something computed in float32?' if rounded else ''})"


def _call(subject: _Subject) -> str | None:
    q, k, v = subject.q, subject.k, subject.v
    code = latent_codes(q, k, kind=subject.kind)
    out = subject.attend(q, k, v)
    shapes = {"normaliser": (code, (B, Q, K, H)), "value network": (out, (B, Q, H, V))}
    for name, (found, shape) in shapes.items():
        if found.shape != shape or found.dtype != q.dtype:
            given = f"{found.dtype} {list(found.shape)}"
            return f"the {name} makes {given} of inputs that want {q.dtype} {list(shape)}"
        if not found.isfinite().all():
            return f"the {name} makes numbers that are not finite"
    return None


def _gradients(subject: _Subject) -> str | None:
    inputs = {"q": subject.q, "k": subject.k, "v": subject.v, "bias": subject.bias}
    inputs |= {} if subject.deep is None else {"deep": subject.deep}
    wrong = []
    for name, x in inputs.items():

        def of_one(x: Tensor, name: str = name) -> Tensor:
            return subject.attend(**(inputs | {name: x}), mask=subject.mask)

        x = x.clone().requires_grad_()
        if not torch.autograd.gradcheck(of_one, (x,), raise_exception=False):
            wrong.append(name)
    if wrong:
        return f"the gradient of {', '.join(wrong)} is not that of finite differences"
    return None


def _masks(subject: _Subject) -> str | None:
    q, k, v = subject.q, subject.k.clone().requires_grad_(), subject.v.clone().requires_grad_()
    absent = subject.attend(q, k[:, :SHOWN], v[:, :SHOWN])
    shown = torch.arange(K) < SHOWN
    masked: dict[str, dict[str, Tensor]] = {
        "a mask [keys]": {"mask": shown},
        "a mask [batch, heads, queries, keys]": {"mask": shown.expand(B, H, Q, K)},
        "lengths": {"lengths": torch.tensor([SHOWN] * B)},
        "a bias of -inf": {"bias": torch.zeros(K).double().masked_fill(~shown, -torch.inf)},
    }
    for name, options in masked.items():
        out = subject.attend(q, k, v, **options)
        if by := _unlike(out, absent):
            return f"keys that are masked by {name} change the result{by}"
        for x, of in zip(_gradients_of(out, k, v), ("keys", "values"), strict=True):
            if not x[:, SHOWN:].eq(0).all():
                return f"{of} that are masked by {name} get a gradient"
    # The first sequence has no key at all.
    out = subject.attend(q, k, v, lengths=torch.tensor([0, K]))
    if not out[0].eq(0).all():
        return "a query without any key gets another output than 0"
    if not all(x[0].eq(0).all() for x in _gradients_of(out, k, v)):
        return "a query without any key gives its keys a gradient that is not 0"
    return None


def _gradients_of(out: Tensor, *inputs: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(out.square().sum(), inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def _over_keys(subject: _Subject) -> str | None:
    if subject.kind.over_keys:
        return None
    every = latent_codes(subject.q, subject.k, kind=subject.kind)[:, :, :SHOWN]
    few = latent_codes(subject.q, subject.k[:, :SHOWN], kind=subject.kind)
    by = _unlike(few, every)
    wrong = "the code of a pair depends on other keys, so the normaliser needs over_keys=True"
    return f"{wrong}{by}" if by else None


def _alone(subject: _Subject) -> str | None:
    q, k, v, mask = subject.q, subject.k, subject.v, subject.mask
    out = subject.attend(q, k, v, mask=mask)
    if by := _unlike(subject.attend(q[:, -1:], k, v, mask=mask[:, :, -1:]), out[:, -1:]):
        return f"a query alone has another output than together with other queries{by}"
    if by := _unlike(subject.attend(q[:1], k[:1], v[:1], mask=mask[:1]), out[:1]):
        return f"a sequence alone has another output than in a batch{by}"
    return None


def _decoding(subject: _Subject) -> str | None:
    layer, x = subject.layer(), torch.randn(B, K, 11, dtype=torch.float64)
    cache = KeyValueCache(K)
    steps = [layer(x[:, :2], cache=cache)]
    steps += [layer(x[:, i : i + 1], cache=cache) for i in range(2, K)]
    if by := _unlike(torch.cat(steps, dim=1), layer(x)):
        return f"decoding with a cache has another output than all tokens at once{by}"
    return None


def _population(subject: _Subject) -> str | None:
    layers = [subject.layer() for _ in range(M)]
    x = torch.randn(M, B, K, 11, dtype=torch.float64, requires_grad=True)
    together = stack(layers)(x)
    alone = torch.stack([layer(part) for layer, part in zip(layers, x, strict=True)])
    if by := _unlike(together, alone):
        return f"a member of a population has another output than the same model alone{by}"
    if by := _unlike(*_gradients_of(together, x), *_gradients_of(alone, x)):
        return f"a member of a population has other gradients than the same model alone{by}"
    return None


def _device(subject: _Subject) -> str | None:
    # Tensors without numbers: none can be read, and those of another device do not go with them.
    q, k, v = (x.to("meta") for x in (subject.q, subject.k, subject.v))
    deep = None if subject.deep is None else subject.deep.to("meta")
    try:
        subject.attend(q, k, v, deep=deep, mask=subject.mask.to("meta"))
    except Exception as error:
        words = " ".join(str(error).split())
        return (
            "it reads numbers from tensors, for which a GPU has to wait, or makes tensors on "
            f"another device than its inputs': {words[:500]}"
        )
    return None


def _compiled(subject: _Subject) -> str | None:
    from torch._dynamo import config  # slow to import

    eager = subject.layer()
    x = torch.randn(B, K, 11, dtype=torch.float64)
    # PyTorch stops recompiling the same code after 8 kinds.
    many = {"recompile_limit": sys.maxsize, "accumulated_recompile_limit": sys.maxsize}
    with config.patch(many):
        compiled = torch.compile(eager, fullgraph=True, backend="eager")
        try:
            out = compiled(x)
        except Exception as error:
            return f"torch.compile(fullgraph=True) refuses it: {str(error).split(chr(10))[0]}"
    if by := _unlike(out, eager(x)):
        return f"compiled, it has another output{by}"
    return None


PROPERTIES: dict[str, Callable[[_Subject], str | None]] = {
    "call": _call,
    "gradients": _gradients,
    "masks": _masks,
    "over_keys": _over_keys,
    "alone": _alone,
    "decoding": _decoding,
    "population": _population,
    "device": _device,
    "compile": _compiled,
}
