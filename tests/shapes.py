"""Random problems for fused attention, and its errors relative to float64.

A case describes a problem; `failures` computes its output and every gradient with `attend` and
compares them with the float64 reference on the same (rounded) inputs.

Three effects would make even a correct result miss a tolerance, and are avoided:

- A ReLU with an input near 0 may flip by rounding, which changes a whole term of a gradient. In
  bf16 one in a thousand does, a change of 3 %. No gradient is sent through these.
- The gradient of a score is a difference (softmax: from the mean over keys; RMSHead: from the
  part along the code). If it cancels, the error is measured relative to its terms.
- RMSHead over one or two heads (or that many unmasked ones) may divide by scores that are all near
  0, where fp32 has few exact digits; there epsilon is 0.1.

Shapes: as in `hyla.attention.reference`.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, einsum

from hyla import KINDS, Kind, attend
from hyla.attention import reference

FORMS = KINDS | {
    "softmax+deep": Kind("softmax code, deep value network", "softmax", "deep", nonlinear=True),
    "none+deep": Kind("plain scores, deep value network", "none", "deep", nonlinear=True),
    "deep-nonlinearity": Kind("deep linear value network", "rms_head", "deep", nonlinear=False),
}
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}
# Closest allowed input of a ReLU to 0, relative to the norm of its terms: four standard deviations
# of rounding each term, and more in fp32 for long sums of scores.
MARGINS = {torch.float32: 1e-5, torch.float16: 2**-11, torch.bfloat16: 2**-8}
# Successive roundings in a deep value network: of the code (three times a factor), of both hidden
# layers, of the second matrix times the code.
DEEP = 2
# In 16 bits, often every query of a deep value network has a ReLU near 0. Then gradients are sent
# through all of them; rounding simulated on a CPU changed them by up to 8 % in bf16.
SWITCHING = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.12}

HEADS = (1, 2, 3, 4, 5, 7, 8, 8, 12, 16, 16, 17, 31, 32)
SIZES = (2, 4, 4, 8, 16, 32, 64, 64, 128)
TOKENS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 36, 36, 37, 61, 63, 64, 65, 97, 100, 127, 128)
LONG = (129, 131, 191, 256, 257, 383, 509, 512, 1000)
FEWEST_OUTPUTS = 2048  # so that a relative norm averages over many numbers
LIMIT = 2**24  # numbers in the largest tensor of the reference: 128 MiB in float64, up to 8 of them


@dataclass(frozen=True)
class Case:
    """A problem.

    batch: leading axes, with a population `(members, sequences)`. bias: `shared` by all sequences,
    one for each `member`, the same for all heads (`pairs`), one for each sequence (`full`) or none;
    masked: -inf in parts of it. mask: a boolean mask too. factors: of the code, as of dropout,
    each member its own. strided: inputs are views of others.
    """

    seed: int
    kind: str
    dtype: torch.dtype
    batch: tuple[int, ...]
    queries: int
    keys: int
    heads: int
    size: int
    value_size: int
    causal: bool = False
    bias: str | None = None
    bias_dtype: torch.dtype = torch.float32
    masked: bool = False
    mask: bool = False
    lengths: bool = False
    factors: bool = False
    strided: bool = False
    eps: float = 1e-6

    @property
    def form(self) -> Kind:
        return FORMS[self.kind]


def cases(count: int, seed: int, *, limit: int = LIMIT, alike: int = 3) -> list[Case]:
    """Random problems; `alike` at a time differ in sizes and masks only, and share kernels.

    >>> small = cases(12, seed=0, limit=2**16)
    >>> [failure for case in small[::4] for failure in failures(case, "reference", "cpu")]
    []
    """
    rng = random.Random(seed)
    kinds: list[str] = []
    found: list[Case] = []
    while len(found) < count:
        if not kinds:
            kinds = rng.sample(list(FORMS), len(FORMS))
        constant = _draw_form(rng, kinds.pop())
        for _ in range(alike):
            found.append(_draw_sizes(rng, constant, limit, rng.randrange(2**31)))
    return found[:count]


def _draw_form(rng: random.Random, kind: str) -> dict[str, Any]:
    """What a kernel is compiled for."""
    heads, size = rng.choice(HEADS), rng.choice(SIZES)
    if FORMS[kind].value_network == "deep":
        size = min(size, 32)
    dtype = rng.choices(list(TOLERANCES), [4, 2, 4])[0]
    return {
        "kind": kind,
        "dtype": dtype,
        "heads": heads,
        "size": size,
        "value_size": size if rng.random() < 0.85 else rng.choice(SIZES[:-2]),
        "causal": rng.random() < 0.4,
        "bias": rng.choices([None, "shared", "member", "pairs", "full"], [8, 8, 4, 1, 1])[0],
        "bias_dtype": rng.choice([torch.float32, dtype]),
        "factors": rng.random() < 0.25,
    }


def _draw_sizes(rng: random.Random, form: dict[str, Any], limit: int, seed: int) -> Case:
    heads, size = form["heads"], form["value_size"]
    deep = FORMS[form["kind"]].value_network == "deep"
    per_pair = heads * size if deep else heads + size
    while True:
        keys = rng.choice(LONG if rng.random() < 0.15 else TOKENS)
        queries = keys if rng.random() < 0.6 else rng.choice(TOKENS)
        if form["causal"]:
            queries, keys = sorted((queries, keys))
        fewest = -(-FEWEST_OUTPUTS // (queries * heads * size))
        most = limit // (queries * keys * per_pair)
        if fewest <= most:
            break
    sequences = rng.randint(fewest, min(most, 3 * fewest + 4))
    batch: tuple[int, ...] = (sequences,)
    members = rng.choice((1, 2, 3))
    if form["bias"] == "member" or rng.random() < 0.3:
        batch = (members, max(1, sequences // members))
    masked = form["bias"] is not None and rng.random() < 0.3
    few_heads = heads <= (8 if masked else 2) and FORMS[form["kind"]].normaliser == "rms_head"
    return Case(
        seed=seed,
        batch=batch,
        queries=queries,
        keys=keys,
        masked=masked,
        eps=0.1 if few_heads else 1e-6,
        mask=rng.random() < 0.08,
        lengths=rng.random() < 0.35,
        strided=rng.random() < 0.3,
        **form,
    )


def make(case: Case, device: torch.device | str) -> dict[str, Tensor]:
    """The tensors of a case by the names of `attend`'s arguments, the same on every device."""
    generator = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def pairs_shape() -> tuple[int, ...]:
        ones = (1,) * len(case.batch)
        pairs = (case.queries, case.keys)
        return {
            "shared": (*ones, case.heads, *pairs),
            "member": (case.batch[0], *ones[1:], case.heads, *pairs),
            "pairs": pairs,
            "full": (*case.batch, case.heads, *pairs),
        }[case.bias or "shared"]

    tensors = {
        "q": normal(*case.batch, case.queries, case.heads, case.size),
        "k": normal(*case.batch, case.keys, case.heads, case.size),
        "v": normal(*case.batch, case.keys, case.heads, case.value_size),
    }
    tensors = {name: x.to(case.dtype) for name, x in tensors.items()}
    if case.bias is not None:
        bias = normal(*pairs_shape()).to(case.bias_dtype)
        if case.masked:
            bias = bias.masked_fill(normal(*bias.shape) > 0.7, -torch.inf)
        tensors["bias"] = bias
    if case.form.value_network == "deep":
        members = (case.batch[0], 1) if len(case.batch) == 2 else ()
        deep = normal(*members, case.heads, case.value_size, case.value_size)
        tensors["deep"] = (deep / case.value_size**0.5).to(case.dtype)
    if case.mask:
        tensors["mask"] = normal(case.queries, case.keys) < 0.7
    if case.factors:
        members = (case.batch[0], 1) if len(case.batch) == 2 else ()
        kept = torch.rand(*members, case.queries, case.keys, generator=generator) < 0.7
        tensors["factors"] = kept / 0.7
    if case.lengths:
        drawn = torch.randint(-1, case.keys + 2, case.batch, generator=generator)
        dtype = torch.int32 if case.seed % 2 else torch.int64
        tensors["lengths"] = drawn.clamp(0, case.keys).to(dtype)
    tensors = {name: x.to(device) for name, x in tensors.items()}
    if case.strided:
        tensors |= {name: _view(name, tensors[name]) for name in ("q", "k", "v")}
    return tensors


def _view(name: str, x: Tensor) -> Tensor:
    """The same numbers, not contiguous: heads before tokens, a part of a cache, every other row."""
    if name == "q":
        return x.transpose(-3, -2).contiguous().transpose(-3, -2)
    if name == "k":
        return torch.cat((x, torch.full_like(x, torch.nan)), dim=-3)[..., : x.shape[-3], :, :]
    return torch.stack((x, torch.full_like(x, torch.nan)), dim=-2)[..., 0, :]


def result(
    case: Case, tensors: dict[str, Tensor], gradient: Tensor | None, backend: str | None
) -> dict[str, Tensor]:
    """The output, and the gradients by the names of the arguments if there is one of the output."""
    leaves = {n: tensors[n].detach() for n in ("q", "k", "v", "bias", "deep") if n in tensors}
    for leaf in leaves.values():
        leaf.requires_grad_(gradient is not None)
    out = attend(
        **(tensors | leaves), kind=case.form, causal=case.causal, eps=case.eps, backend=backend
    )
    found = {"output": out.detach()}
    if gradient is not None:
        gradients = torch.autograd.grad(out, list(leaves.values()), gradient)
        found |= dict(zip(leaves, gradients, strict=True))
    return found


def in_float64(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: x.double() if x.is_floating_point() else x for n, x in tensors.items()}


def errors(case: Case, backend: str | None, device: torch.device | str) -> dict[str, float]:
    """Relative errors of the output and of each gradient, divided by what is allowed.

    Above 1 is wrong. Infinite: not finite, of another dtype or shape, or not 0 where all pairs that
    could contribute are masked.
    """
    return compare(case, make(case, device), backend)


def compare(
    case: Case, tensors: dict[str, Tensor], backend: str | None, given_from: Any = None
) -> dict[str, float]:
    """As `errors`, for these tensors. given_from: others that the tested backend gets instead."""
    exact_tensors = in_float64(tensors)
    allowed, code = _code(case, exact_tensors)
    gradient, switching = _output_gradient(case, exact_tensors, code)
    exact = result(case, exact_tensors, gradient, "reference")
    if case.dtype == torch.float16:
        # Sums over a whole batch may overflow float16; scaling by powers of 2 is exact.
        largest = max(float(x.abs().max()) for x in exact.values() if x.numel())
        factor = 2.0 ** min(0, math.floor(math.log2(2000 / max(largest, 1.0))))
        gradient = gradient * factor
        exact = {n: x if n == "output" else x * factor for n, x in exact.items()}
    given = result(case, given_from or tensors, gradient.to(case.dtype), backend)
    touched = _touched(tensors, allowed)
    found = {}
    for name, expected in exact.items():
        tolerance = TOLERANCES[case.dtype] * (DEEP if "deep" in tensors else 1)
        if switching and name != "output":
            tolerance = max(tolerance, SWITCHING[case.dtype])
        dtype = case.dtype if name == "output" else tensors[name].dtype
        good = given[name].dtype == dtype and given[name].shape == expected.shape
        ours = given[name].double()
        if not good or not ours.isfinite().all() or ours[~touched[name]].ne(0).any():
            found[name] = math.inf
            continue
        error, scale = float((ours - expected).norm()), float(expected.norm())
        if error > tolerance * scale and name in ("q", "k", "bias"):
            scale = max(scale, float(_terms(case, exact_tensors, allowed, code, gradient)[name]))
        found[name] = 0.0 if error == 0 else error / max(tolerance * scale, 1e-300)
    return found


def failures(case: Case, backend: str | None, device: torch.device | str) -> list[str]:
    """What is wrong with this backend's answer, in words; nothing if it is right."""
    return [
        f"{name} off by {error:.1f} x what is allowed: {case}"
        for name, error in errors(case, backend, device).items()
        if not error <= 1
    ]


def _code(case: Case, tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Which pairs take part, and the latent code with its factors, for every sequence and head."""
    device = tensors["q"].device
    allowed = reference.allowed_pairs(
        torch.arange(case.keys - case.queries, case.keys, device=device),
        torch.arange(case.keys, device=device),
        causal=case.causal,
        **{name: tensors.get(name) for name in ("mask", "lengths", "bias")},
    )
    shape = (*case.batch, case.heads, case.queries, case.keys)
    if allowed is None:
        allowed = torch.ones((), dtype=torch.bool, device=device)
    allowed = allowed.expand(shape)
    code = reference.latent_code(
        tensors["q"], tensors["k"], case.form.normaliser, scale=case.size**-0.5, eps=case.eps,
        bias=tensors.get("bias"), allowed=allowed,
    )  # fmt: skip
    return allowed, code * _factors(tensors)


def _factors(tensors: dict[str, Tensor]) -> Tensor | float:
    """The factors of the code, for all heads."""
    return tensors["factors"].unsqueeze(-3) if "factors" in tensors else 1.0


def _output_gradient(
    case: Case, tensors: dict[str, Tensor], code_BHQK: Tensor
) -> tuple[Tensor, bool]:
    """A random gradient of the output that reaches no ReLU near 0; whether some are reached.

    A unit of the hidden layer is reached from the same unit of the output alone; of two hidden
    layers, from all units of its query.
    """
    generator = torch.Generator().manual_seed(case.seed + 1)
    shape = (*case.batch, case.queries, case.heads, case.value_size)
    gradient = torch.randn(shape, generator=generator).to(case.dtype).double().to(code_BHQK.device)
    if not case.form.nonlinear or case.form.value_network == "linear":
        return gradient, False
    v = tensors["v"]

    def near_zero(equation: str, *parts: Tensor) -> tuple[Tensor, Tensor]:
        x = einsum(equation, *parts)
        # Each of the factors is rounded, except inputs.
        margin = MARGINS[case.dtype] * (len(parts) - 1)
        return x, x.abs() < margin * einsum(equation, *(part.square() for part in parts)).sqrt()

    z_BQKV, near_BQKV = near_zero("...hqk,...khv->...qkv", code_BHQK, v)
    if "deep" in tensors:
        equation = "...hqk,...qkv,...huv->...qku"
        near_BQKV |= near_zero(equation, code_BHQK, z_BQKV.relu(), tensors["deep"])[1]
        near_BQKV = near_BQKV.any(dim=-1, keepdim=True)
    kept = ~near_BQKV.any(dim=-2).unsqueeze(-2)
    if kept.double().mean() < 0.05:
        return gradient, True
    return gradient * kept, False


def _terms(
    case: Case, tensors: dict[str, Tensor], allowed: Tensor, code: Tensor, gradient: Tensor
) -> dict[str, Tensor]:
    """Norms of the gradients that go through scores, as they were if nothing were subtracted.

    That is, if the denominator of the normaliser were a constant, and for a bias if each sequence
    had its own.
    """
    q, k = (tensors[name].detach().requires_grad_() for name in ("q", "k"))
    score = reference.latent_code(q, k, "none", scale=case.size**-0.5, eps=case.eps)
    if "bias" in tensors:
        score = score + tensors["bias"].masked_fill(tensors["bias"] == -torch.inf, 0.0)
    score = score.masked_fill(~allowed, 0.0)
    if case.form.normaliser == "softmax":
        free = code.detach() * (1 + score - score.detach())
    elif case.form.normaliser == "rms_head":
        square = score.detach().square().mean(dim=-3, keepdim=True)
        free = score * torch.rsqrt(square + case.eps) * _factors(tensors)
    else:
        free = score * _factors(tensors)
    phi = torch.relu if case.form.nonlinear else (lambda x: x)
    out = reference.apply_value_network(
        free, tensors["v"], case.form.value_network, phi, tensors.get("deep")
    )
    found = torch.autograd.grad(out, (q, k, score), gradient)
    return {n: x.norm() for n, x in zip(("q", "k", "bias"), found, strict=True)}


def _touched(tensors: dict[str, Tensor], allowed_BHQK: Tensor) -> dict[str, Tensor]:
    """Where some pair takes part, in the shape of the output and of each gradient."""
    by_query = allowed_BHQK.any(dim=-1).transpose(-1, -2).unsqueeze(-1)
    by_key = allowed_BHQK.any(dim=-2).transpose(-1, -2).unsqueeze(-1)
    v = tensors["v"]
    out_shape = (*by_query.shape[:-1], v.shape[-1])
    found = {
        "output": by_query.expand(out_shape),
        "q": by_query.expand(tensors["q"].shape),
        "k": by_key.expand(tensors["k"].shape),
        "v": by_key.expand(v.shape),
    }
    if "bias" in tensors:
        found["bias"] = allowed_BHQK.double().sum_to_size(tensors["bias"].shape) > 0
    if "deep" in tensors:
        found["deep"] = torch.ones_like(tensors["deep"], dtype=torch.bool)
    return found
