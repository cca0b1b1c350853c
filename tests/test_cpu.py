"""The kernels of cpu.cpp: random problems against float64, the torch operator, and builds."""

import ctypes
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import shapes
import torch
from shapes import FORMS
from torch import Tensor

from hyla import attend, native
from hyla.attention import kernels
from hyla.attention.kernels import choice, operator

pytestmark = pytest.mark.skipif(native.compiler() is None, reason="needs a C++ compiler")
NAMES = ("q", "k", "v", "bias", "deep")


@pytest.fixture(autouse=True)
def nan_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results start as NaN, so that one that is not written is seen."""

    def empty(shape: Any, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return like.new_full(tuple(shape), torch.nan, dtype=dtype or like.dtype)

    monkeypatch.setattr(kernels, "empty", empty)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def fits(case: shapes.Case) -> bool:
    return case.form.value_network != "deep" or case.value_size <= 16


CASES = [case for case in shapes.cases(240, seed=7, limit=2**16) if fits(case)]


@pytest.mark.parametrize("part", range(6))
def test_random_problems_are_near_float64(part: int) -> None:
    assert [x for case in CASES[part::6] for x in shapes.failures(case, "cpu", "cpu")] == []


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("part", range(2))
def test_random_problems_with_two_threads(part: int) -> None:
    cases = [case for case in shapes.cases(60, seed=8, limit=2**17, alike=1) if fits(case)]
    assert [x for case in cases[part::2] for x in shapes.failures(case, None, "cpu")] == []


@pytest.mark.parametrize("march", ["x86-64-v2", "x86-64-v3"])
def test_builds_for_other_processors(march: str) -> None:
    if march not in native.supported_variants():
        pytest.skip(f"this processor does not run {march}")
    with native.using("attention", ctypes.CDLL(str(native.build("attention", march)))):
        cases = [case for case in shapes.cases(39, seed=9, limit=2**15, alike=1) if fits(case)]
        assert [x for case in cases for x in shapes.failures(case, "cpu", "cpu")] == []


def problem(
    kind: str, batch: tuple[int, ...] = (5,), queries: int = 7, keys: int = 19, heads: int = 3,
    size: int = 5, dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:  # fmt: skip
    ones = (1,) * len(batch)
    tensors = {
        "q": torch.randn(*batch, queries, heads, size),
        "k": torch.randn(*batch, keys, heads, size),
        "v": torch.randn(*batch, keys, heads, size),
        "bias": torch.randn(*ones, heads, queries, keys),
    }
    if FORMS[kind].value_network == "deep":
        tensors["deep"] = torch.randn(heads, size, size)
    return {n: x.to(dtype) for n, x in tensors.items()}


def results(tensors: dict[str, Tensor], kind: str, backend: str | None, **options: Any) -> Any:
    leaves = {n: x.detach().requires_grad_() for n, x in tensors.items()}
    out = attend(**leaves, kind=FORMS[kind], backend=backend, **options)
    grad = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, list(leaves.values()), grad)]


def assert_near(given: list[Tensor], exact: list[Tensor], tolerance: float = 1e-5) -> None:
    for index, (ours, theirs) in enumerate(zip(given, exact, strict=True)):
        error = (ours.double() - theirs).norm() / theirs.norm()
        assert error < tolerance, (index, float(error))


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("outer", [(), (1,), (1, 1), (2, 1), (1, 3), (2, 3)])
def test_factors_multiply_the_code(kind: str, outer: tuple[int, ...]) -> None:
    tensors = problem(kind, (2, 3))
    factors = torch.randn(*outer, 7, 19).relu() * 2  # some are 0, as in dropout
    double = {n: x.double() for n, x in tensors.items()}
    given = results(tensors, kind, "cpu", factors=factors, causal=True, eps=0.1)
    exact = results(double, kind, "reference", factors=factors, causal=True, eps=0.1)
    assert_near(given, exact)
    without = results(double, kind, "reference", causal=True, eps=0.1)
    assert (without[0] - exact[0]).norm() > 0.1 * exact[0].norm()
    negative = results(tensors, kind, "cpu", factors=-factors, eps=0.1)
    assert_near(negative, results(double, kind, "reference", factors=-factors, eps=0.1))


def test_factors_of_ones_change_nothing_and_others_are_refused() -> None:
    tensors = problem("hyla")
    plain = results(tensors, "hyla", "cpu")
    assert_near(results(tensors, "hyla", None, factors=torch.ones(7, 19)), plain, 1e-6)
    for shape in ((19,), (7, 18), (4, 7, 19), (5, 1, 7, 19)):
        with pytest.raises(ValueError, match=r"^factors: expected \[queries, keys\] = \[7, 19\]"):
            attend(**tensors, factors=torch.ones(shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_parts_of_one_product_are_read_where_they_are(dtype: torch.dtype) -> None:
    whole = torch.randn(4, 9, 3 * 3 * 5).to(dtype)
    views = [x.unflatten(-1, (3, 5)) for x in whole.chunk(3, dim=-1)]
    given, copies = (dict(zip("qkv", x, strict=True)) for x in (views, [x.clone() for x in views]))
    assert not given["q"].is_contiguous()
    for kind in ("hyla", "softmax", "linear+rms_head+nonlinear_value"):
        pairs = zip(results(given, kind, "cpu"), results(copies, kind, "cpu"), strict=True)
        assert all(ours.equal(theirs) for ours, theirs in pairs)


@pytest.mark.parametrize("dtype, most", [(torch.bfloat16, 0.01), (torch.float16, 0.002)])
@pytest.mark.parametrize("kind", ["hyla-rms_head", "hyla+deep", "softmax"])
def test_the_reference_is_float32_inside_of_16_bits(
    dtype: torch.dtype, most: float, kind: str
) -> None:
    tensors = problem(kind, (7,), 19, 23, 8, 8, dtype=dtype)
    exact = results({n: x.double() for n, x in tensors.items()}, kind, None, activation="silu")
    given = results(tensors, kind, None, activation="silu")
    assert [x.dtype for x in given] == [dtype] * len(given)
    assert_near(given, exact, most)
    with torch.autocast("cpu", dtype):
        mixed = results({n: x.float() for n, x in tensors.items()}, kind, None, activation="silu")
    assert mixed[0].dtype == dtype
    assert_near(mixed, exact, most)


# Operator.


@pytest.mark.parametrize("kind", ["hyla", "softmax", "hyla+deep"])
def test_the_operators_are_what_torch_expects(kind: str) -> None:
    form, tensors = FORMS[kind], problem(kind)
    if "deep" in tensors:
        tensors["deep"] = tensors["deep"][None]
    leaves = [tensors[n].requires_grad_() if n in tensors else None for n in NAMES]
    lengths, factors = torch.tensor([0, 19, 3, 1, 7], dtype=torch.int32), torch.rand(1, 7, 19)
    given = (*leaves[:4], lengths, leaves[4], factors)
    options = (form.normaliser, form.value_network, form.nonlinear, True, 0.4, 1e-6, "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # in PyTorch's own modules
        torch.library.opcheck(operator.operator, (*given, *options))
        detached = [None if x is None else x.detach() for x in given]
        out, lse = operator.operator(*detached, *options)
        for need_bias in (True, False):
            arguments = (torch.randn_like(out), *detached, out, lse, *options, need_bias)
            torch.library.opcheck(operator.backward_operator, arguments)


@pytest.mark.parametrize("kind", ["hyla", "softmax", "linear"])
def test_compiled_it_is_the_same(kind: str) -> None:
    torch.compiler.reset()
    tensors = list(problem(kind).values())

    def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return attend(q, k, v, bias=bias, kind=kind, causal=True)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    found = []
    for function in (run, compiled):
        leaves = [x.detach().requires_grad_() for x in tensors]
        out = function(*leaves)
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    assert all(ours.equal(theirs) for ours, theirs in zip(*found, strict=True))


def test_vmap_is_a_loop() -> None:
    q, k, v = torch.randn(3, 3, 2, 7, 5, 4).unbind()
    bias = torch.randn(3, 2, 5, 7, 7)[:, :1]
    mapped = torch.func.vmap(lambda q, k, v, bias: attend(q, k, v, bias=bias))(q, k, v, bias)
    looped = [attend(q[i], k[i], v[i], bias=bias[i]) for i in range(3)]
    assert mapped.equal(torch.stack(looped))


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name, value", [("q", torch.nan), ("v", torch.inf), ("k", torch.nan)])
def test_what_is_not_finite_stays_in_its_sequence(kind: str, name: str, value: float) -> None:
    tensors = problem(kind, queries=19)
    clean = results(tensors, kind, "cpu", causal=True)
    tensors[name] = tensors[name].clone()
    tensors[name][2, 3, 1, 2] = value
    given = results(tensors, kind, "cpu", causal=True)
    others = [0, 1, 3, 4]
    for ours, theirs in zip(given[:4], clean[:4], strict=True):
        assert ours[others].equal(theirs[others])
    double = {n: x.double() for n, x in tensors.items()}
    exact = results(double, kind, "reference", causal=True)
    broken = ~exact[0][2].isfinite()
    assert broken.any()
    assert (~given[0][2].isfinite())[broken].all()
    if name == "q":  # the gradient of the bias is broken where its query is, and nowhere else
        assert given[4][..., torch.arange(19) != 3, :].isfinite().all()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("sequences", [1, 7, 67])
def test_a_number_of_threads_gives_one_result(sequences: int) -> None:
    tensors = problem("hyla", (sequences,), 37, 37, 4, 4)
    first, second = (results(tensors, "hyla", "cpu") for _ in range(2))
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    torch.set_num_threads(1)
    alone = results(tensors, "hyla", "cpu")
    assert all(a.equal(b) for a, b in zip(first[:4], alone[:4], strict=True))
    assert torch.allclose(first[4], alone[4], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("sequences", [1, 2, 7])
def test_sets_of_members_end_anywhere_in_a_thread(members: int, sequences: int) -> None:
    for kind in ("hyla+deep", "linear"):
        tensors = problem(kind, (members, sequences), 5, 7)
        tensors["bias"] = torch.randn(members, 1, 3, 5, 7)
        if "deep" in tensors and sequences > 1:
            tensors["deep"] = torch.randn(members, 1, 3, 5, 5)
        double = {n: x.double() for n, x in tensors.items()}
        exact = results(double, kind, "reference", eps=0.1)
        assert_near(results(tensors, kind, "cpu", eps=0.1), exact)


# Builds.


def attending(folder: Path, **environment: str) -> tuple[str, str]:
    """Another process that attends: its output, the chosen backend and whether it is right."""
    return _run(
        """
import hyla, torch
from hyla.attention.kernels import choice
q = torch.randn(2, 5, 3, 4)
print(choice.choose(None, q, q, q, hyla.KINDS["hyla"], "relu", False))
print(torch.allclose(hyla.attend(q, q, q), hyla.attend(q, q, q, backend="reference"), atol=1e-4))
""",
        folder,
        **environment,
    ).communicate()


def building(folder: Path) -> "subprocess.Popen[str]":
    """Another process that builds the smaller library; prints whether it could be loaded."""
    code = """
from hyla import native
native.FLAGS = tuple("-O0" if x == "-O3" else x for x in native.FLAGS)
print(native.load("products") is not None)
"""
    return _run(code, folder)


def _run(code: str, folder: Path, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"XDG_CACHE_HOME": str(folder)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_without_a_compiler_the_reference_is_taken(tmp_path: Path) -> None:
    out, error = attending(tmp_path, PATH=str(tmp_path), CXX="")
    assert out.split() == ["reference", "True"]
    assert error.count("hyla: no CPU kernels: no C++ compiler found; install g++") == 1


def test_a_compiler_that_fails_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'error: out of order' >&2\nexit 1\n")
    broken.chmod(0o755)
    out, error = attending(tmp_path, CXX=str(broken))
    assert out.split() == ["reference", "True"]
    assert "out of order" in error
    assert not list((tmp_path / "hyla").glob("*.so"))


def test_two_processes_build_at_once_and_a_library_cut_short_is_built_anew(tmp_path: Path) -> None:
    both = [building(tmp_path) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in both] == ["True", "True"]
    (library,) = (tmp_path / "hyla").glob("products-*.so")
    whole = library.read_bytes()
    library.write_bytes(whole[:-1000])
    assert building(tmp_path).communicate()[0].strip() == "True"
    assert len(library.read_bytes()) == len(whole)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out, error = building(tmp_path / "file").communicate()
    assert out.strip() == "True"
    assert "cannot write to" in error


def test_it_can_be_refused() -> None:
    q = torch.randn(2, 5, 3, 4)
    with native.using("attention", None):
        assert choice.choose(None, q, q, q, FORMS["hyla"], "relu", False) == "reference"
        with pytest.raises(ValueError, match=r"backend: .cpu. needs .*a C.. compiler"):
            attend(q, q, q, backend="cpu")


def test_small_eps_and_lanes_without_a_query() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 7, 3, 5, requires_grad=True) for _ in range(3))
    for backend in ("cpu", "reference"):
        out = attend(q, k, v, kind="hyla", eps=1e-28, backend=backend)
        assert all(one.isfinite().all() for one in torch.autograd.grad(out.sum(), (q, k, v)))


def test_fewer_threads_than_asked_for() -> None:
    """As where other processes or a limit of OpenMP leave no more; in a process of its own."""
    code = """
import torch
from hyla import attend
torch.set_num_threads(2)
torch.manual_seed(0)
q, k, v = (torch.randn(16, 7, 3, 5) for _ in range(3))
bias = torch.randn(1, 3, 7, 7, requires_grad=True)
found = [
    torch.autograd.grad(attend(q, k, v, bias=bias, backend=name).sin().sum(), bias)[0]
    for name in ("cpu", "reference")
]
torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
"""
    environment = os.environ | {"OMP_THREAD_LIMIT": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_a_broken_quote_in_cxx_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", '"x')
    assert native.compiler() in (["g++"], ["clang++"], None)
