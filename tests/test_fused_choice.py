"""Which kernel a call uses, and why a kernel refuses a call. Runs without a GPU."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

from hyla import KINDS, attend
from hyla.attention.kernels import choice


def test_on_a_cpu_its_kernels_are_chosen_where_they_can_do_the_call() -> None:
    q = torch.randn(2, 3, 5, 7)
    for kind in KINDS.values():
        assert choice.choose(None, q, q, q, kind, "relu", True) == "cpu"
    assert choice.choose(None, q.double(), q, q, KINDS["hyla"], "relu", False) == "reference"
    assert choice.choose(None, q, q, q, KINDS["hyla"], "gelu", False) == "reference"
    assert choice.choose(None, q, q, q[..., :0], KINDS["hyla"], "relu", False) == "reference"
    large = torch.randn(2, 3, 5, 17)
    deep = KINDS["hyla+deep"]
    assert choice.choose(None, large, large, large, deep, "relu", False) == "reference"
    assert choice.choose("reference", q, q, q, kind, "gelu", True) == "reference"


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^backend: unknown name 'tile'. Did you mean 'tiles'"):
        attend(*(torch.randn(2, 3, 5, 7) for _ in range(3)), backend="tile")


HALF = {"dtype": torch.bfloat16}


@pytest.mark.parametrize(
    "backend, shape, options, reason",
    [
        ("thin", (1, 2, 3, 4), {"dtype": torch.float64}, "bfloat16 or float16 tensors, not .*64"),
        ("tiles", (1, 2, 3, 4), {"dtype": torch.float64}, "bfloat16 or float16 tensors, not .*64"),
        ("thin", (1, 2, 3, 4), {"activation": "gelu"}, "the activation 'relu', not 'gelu'"),
        ("tiles", (1, 2, 3, 4), {"activation": "gelu"}, "the activation 'relu', not 'gelu'"),
        ("thin", (0, 2, 3, 4), {}, "tensors that are not empty"),
        ("tiles", (1, 0, 3, 4), {}, "tensors that are not empty"),
        ("thin", (1, 2, 3, 4), {"device": "cpu"}, "tensors on an NVIDIA GPU, not on cpu"),
        ("wide", (1, 2, 3, 4), {"device": "cpu"}, "tensors on an NVIDIA GPU, not on cpu"),
        ("tiles", (1, 2, 3, 4), {"device": "cpu"}, "tensors on an NVIDIA GPU, not on cpu"),
        ("cpu", (1, 2, 3, 4), {}, "tensors on a CPU, not on cuda"),
        ("cpu", (1, 2, 3, 4), {"device": "cpu", "activation": "silu"}, "'relu', not 'silu'"),
        ("cpu", (1, 2, 3, 17), {"device": "cpu", "kind": "hyla+deep"}, "at most 16 for .*17"),
        ("wide", (1, 2, 3, 32), {"factored": True}, "no factors of the code"),
        ("thin", (1, 2, 3, 17), {}, "at most 64 heads of size 16 .*, not 3 of .17, 17."),
        ("thin", (1, 2, 65, 4), {}, "at most 64 heads of size 16 .*, not 65 of .4, 4."),
        ("thin", (1, 2, 2, 33), {}, "heads x size of at most 64; .*, not 2 of .33, 33."),
        ("thin", (1, 2, 1, 50), {}, "above 32: multiples of 4.*, not 1 of .50, 50."),
        ("tiles", (1, 2, 3, 129), {}, "at most 32 heads of size 128, not 3 of 129"),
        ("tiles", (1, 2, 33, 4), {}, "at most 32 heads of size 128, not 33 of 4"),
        (
            "thin",
            (1, 2, 3, 5),
            {"kind": "hyla+deep"},
            "sizes of at most 16, of values 4, .*not .5, 5.",
        ),
        ("tiles", (1, 2, 8, 64), {"kind": "hyla+deep"}, "heads x size of at most 512 .*not 8 x 64"),
        ("wide", (1, 2, 8, 64), {}, "bfloat16 or float16 tensors, not float32"),
        ("wide", (1, 2, 8, 48), HALF, "at most 16 heads of size 32 or 64, not 8 of .48, 48."),
        ("wide", (1, 2, 17, 32), HALF, "at most 16 heads of size 32 or 64, not 17"),
        ("wide", (1, 2, 8, 64), {**HALF, "biased": True}, "no bias and no mask"),
        (
            "wide",
            (1, 2, 8, 64),
            {**HALF, "kind": "linear"},
            "value network mlp, not 'linear'",
        ),
        ("wide", (1, 2, 8, 64), {**HALF, "capability": (8, 6)}, "compute capability 9 to 11"),
        ("wide", (1, 2, 8, 64), {**HALF, "capability": (12, 0)}, "compute capability 9 to 11"),
        ("tiles", (1, 2, 8, 64), {"capability": (8, 0)}, "compute capability 9 to 11"),
        ("thin", (1, 262_141, 3, 4), {}, "at most 262140 tokens, not 262141"),
        ("thin", (1, 2, 3, 4), {"capability": (7, 5)}, "compute capability 8.0"),
    ],
)
def test_a_backend_says_what_it_cannot_do(
    backend: str,
    shape: tuple[int, ...],
    options: dict[str, Any],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capability = options.get("capability", (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    # Stands in for a tensor on a GPU: these are the attributes used.
    x: Any = SimpleNamespace(
        shape=torch.Size(shape),
        numel=torch.Size(shape).numel,
        dtype=options.get("dtype", torch.float32),
        device=torch.device(options.get("device", "cuda")),
    )
    kind = KINDS[options.get("kind", "hyla")]
    activation, biased = options.get("activation", "relu"), options.get("biased", False)
    factored = options.get("factored", False)
    with pytest.raises(ValueError, match=rf"^backend: '{backend}' needs .*{reason}.*; None takes"):
        choice.choose(backend, x, x, x, kind, activation, biased, factored)


def test_large_heads_that_thin_would_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    def tensor(size: int, dtype: torch.dtype = torch.float32) -> Any:
        shape = torch.Size((512, 36, 1, size))
        cuda = torch.device("cuda")
        return SimpleNamespace(shape=shape, numel=shape.numel, dtype=dtype, device=cuda)

    q, v = tensor(32), tensor(4)
    assert choice.choose("thin", q, q, v, KINDS["hyla"], "relu", False) == "thin"
    with pytest.raises(ValueError, match=r"sizes of at most 16, of values 4, .*not .32, 4."):
        choice.choose("thin", q, q, v, KINDS["hyla+deep"], "relu", False)
    for biased, chosen in ((False, "wide"), (True, "thin")):
        half = tensor(64, torch.bfloat16)
        assert choice.choose(None, half, half, half, KINDS["hyla"], "relu", biased) == chosen


@pytest.mark.parametrize(
    "shape, kind, chosen",
    [
        ((1536, 32, 8, 2), "hyla", "thin"),
        ((1536, 32, 8, 2), "hyla+deep", "thin"),
        ((512, 36, 1, 64), "hyla", "thin"),
        ((512, 36, 2, 32), "softmax", "thin"),
        ((512, 36, 8, 64), "hyla", "tiles"),
        ((1536, 32, 8, 8), "hyla+deep", "tiles"),
        ((2, 1024, 8, 2), "hyla+deep", "tiles"),
        ((2, 1024, 8, 64), "hyla", "tiles"),
    ],
)
def test_the_fastest_is_chosen(
    shape: tuple[int, ...], kind: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    size = torch.Size(shape)
    x: Any = SimpleNamespace(
        shape=size, numel=size.numel, dtype=torch.float32, device=torch.device("cuda")
    )
    assert choice.choose(None, x, x, x, KINDS[kind], "relu", True) == chosen


def test_the_interpreter_refuses_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    q = torch.randn(1, 2, 3, 4)
    assert choice.choose("tiles", q, q, q, KINDS["hyla"], "relu", False) == "tiles"
    for context in (torch.autocast("cpu", torch.bfloat16), contextlib.nullcontext()):
        with (
            context,
            pytest.raises(ValueError, match=r"needs float32 or float16 in Triton's inter"),
        ):
            choice.choose("tiles", q, q, q, KINDS["hyla"], "relu", False)
        q = q.bfloat16()


def test_forward_mode_is_refused_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    q = torch.randn(1, 2, 3, 4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(ValueError, match="'tiles' needs reverse mode"):
            attend(dual, q, q, backend="tiles")
