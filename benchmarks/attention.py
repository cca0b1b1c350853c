"""Time fused attention, HYLA by default: `python benchmarks/attention.py`.

Each shape is first checked: output and all gradients of some sequences must match the float64
reference (the output gradient of the others is 0). A wrong result is not timed. Times are medians
of GPU time of forward, and of forward and backward, captured as a CUDA graph; calls that cannot be
captured include their launches and are marked. The compiled reference and PyTorch's softmax
attention are timed in the same run. The floor is the time that an H200 needs for HYLA's arithmetic,
or for reading inputs and writing results once, whichever is longer; CPUs have none.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla import KINDS, attend
from hyla.attention.kernels.choice import BACKENDS, choose
from hyla.train.population import COMPILER_OPTIONS

# Relative errors of output and gradients, by norm. Rounding may flip a ReLU: one in a thousand in
# bf16, a single one in fp32 (docs/performance.md); tests/shapes.py avoids this.
TOLERANCES = {torch.float32: (1e-5, 2e-3), torch.bfloat16: (1e-2, 5e-2)}
# Achievable on an H200; a multiply-add counts as two; bf16 on tensor cores, fp32 on CUDA cores.
FLOPS = {torch.float32: 60e12, torch.bfloat16: 790e12}
BYTES_A_SECOND = 4.3e12
L2_BYTES = 60 * 2**20
GRAPH_CALLS = 8
# Products over heads and head size per pair. Forward: scores, hidden layer, output. Backward: the
# first two again, the hidden layer's gradient, two for the code's, and those of q, k and v.
PRODUCTS = {"forward": 3, "forward and backward": 11}
# Tensors of the size of q or k that are read or written. Forward: q, k, v, output. Backward: q, k,
# v, the output's gradient and three gradients.
QUERY_TENSORS = {"forward": 2, "forward and backward": 5}
KEY_TENSORS = {"forward": 2, "forward and backward": 6}


@dataclass(frozen=True)
class Shape:
    """The shape of a call; bias: `[1, heads, queries, keys]`, with a gradient."""

    batch: int
    queries: int
    keys: int
    heads: int
    size: int
    dtype: torch.dtype = torch.bfloat16
    causal: bool = False
    bias: bool = False
    backward: bool = True
    kind: str = "hyla"

    @property
    def pairs(self) -> int:
        """The number of unmasked query-key pairs."""
        pairs = self.queries * self.keys
        if self.causal:
            pairs -= self.queries * (self.queries - 1) // 2
        return self.batch * pairs

    def floor(self, what: str) -> dict[str, float]:
        """Return operations and bytes, and their minimal milliseconds."""
        operations = 2.0 * self.pairs * self.heads * self.size * PRODUCTS[what]
        rows = self.queries * QUERY_TENSORS[what] + self.keys * KEY_TENSORS[what]
        moved = self.batch * rows * self.heads * self.size * self.dtype.itemsize
        if self.bias:
            times = 1 if what == "forward" else 3
            moved += 4 * self.heads * self.queries * self.keys * times
        return {
            "operations": operations,
            "bytes": moved,
            "arithmetic_floor_ms": operations / FLOPS[self.dtype] * 1e3,
            "memory_floor_ms": moved / BYTES_A_SECOND * 1e3,
        }


def square(batch: int, tokens: int, heads: int, size: int, **options: Any) -> Shape:
    """Return a shape with as many queries as keys."""
    return Shape(batch, tokens, tokens, heads, size, **options)


SHAPES = {
    "long": square(16, 1024, 8, 64, causal=True),
    "long-16-heads": square(16, 1024, 16, 64, causal=True),
    "longer": square(8, 2048, 8, 64, causal=True),
    "sraven": square(4096, 36, 16, 4, bias=True),
    "sraven-fp32": square(4096, 36, 16, 4, bias=True, dtype=torch.float32),
    "fuzzy": square(4096, 32, 8, 2, bias=True),
    "fuzzy-fp32": square(4096, 32, 8, 2, bias=True, dtype=torch.float32),
    "sraven-128": square(128, 36, 16, 4, bias=True, dtype=torch.float32),
    "fuzzy-128": square(128, 32, 8, 2, bias=True, dtype=torch.float32),
    "decoding": Shape(16, 1, 4096, 8, 64, causal=True, backward=False),
}
ON_CPU = ["sraven-128", "fuzzy-128"]
MEMORY = square(1, 16384, 8, 64, causal=True)
TINY = Shape(3, 5, 7, 4, 8, dtype=torch.float32, causal=True, bias=True)

Inputs = tuple[Tensor, Tensor, Tensor, Tensor | None]
Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def make(shape: Shape, seed: int, device: torch.device) -> tuple[Inputs, Tensor]:
    """Return random q, k, v and bias, and a gradient of the output."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*sizes: int, dtype: torch.dtype = shape.dtype) -> Tensor:
        x = torch.randn(sizes, generator=generator, device=device, dtype=torch.float32)
        return x.to(dtype)

    row = (shape.heads, shape.size)
    q, gradient = (normal(shape.batch, shape.queries, *row) for _ in range(2))
    k, v = (normal(shape.batch, shape.keys, *row) for _ in range(2))
    bias = None
    if shape.bias:
        pairs = (1, shape.heads, shape.queries, shape.keys)
        bias = normal(*pairs, dtype=torch.float32).requires_grad_()
    return (q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), bias), gradient


def ours(shape: Shape, backend: str | None) -> Attention:
    """Return attention of the shape's kind with a backend."""

    def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        return attend(q, k, v, kind=shape.kind, causal=shape.causal, bias=bias, backend=backend)

    return attention


def softmax(shape: Shape) -> Attention:
    """Return PyTorch's softmax attention, which accepts a causal mask or a bias of q's dtype."""
    causal = shape.causal and shape.queries == shape.keys and not shape.bias

    def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mask = None if bias is None else bias.to(q.dtype)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return out.transpose(1, 2)

    return attention


def backward(attention: Attention, inputs: Inputs, gradient: Tensor) -> tuple[Tensor, ...]:
    """Compute the output and the gradients of all inputs."""
    leaves = [x for x in inputs if x is not None]
    out = attention(*inputs)
    return (out.detach(), *torch.autograd.grad(out, leaves, gradient))


@torch.no_grad()
def forward(attention: Attention, inputs: Inputs, gradient: Tensor) -> tuple[Tensor, ...]:
    """Compute the output, as a tuple."""
    return (attention(*inputs),)


def check(
    shape: Shape, attention: Attention, device: torch.device, queries: int | None = None
) -> tuple[float, float]:
    """Return the errors of output and gradients; SystemExit if they are too large.

    Compares the first and the last sequence and some in between (fewer if they are long), each with
    its last `queries` queries (None: all).
    """
    asking = shape.queries if queries is None else queries
    # At most 128 MiB per float64 tensor over pairs, but at least two sequences (up to 4 GiB).
    count = max(2, 2**27 // (asking * shape.keys * max(shape.heads, shape.size) * 8))
    chosen = torch.linspace(0, shape.batch - 1, min(count, shape.batch)).long().to(device)
    (q, k, v, bias), gradient = make(shape, 0, device)
    kept = torch.zeros_like(gradient)
    kept[chosen, -asking:] = gradient[chosen, -asking:]

    def part(x: Tensor) -> Tensor:
        return x.detach()[chosen].double().requires_grad_()

    exact_bias = None if bias is None else bias.detach()[..., -asking:, :].double().requires_grad_()
    exact_inputs = (part(q[:, -asking:]), part(k), part(v), exact_bias)
    if shape.backward:
        exact = backward(ours(shape, "reference"), exact_inputs, kept[chosen, -asking:].double())
        given = backward(attention, (q, k, v, bias), kept)
    else:
        exact = forward(ours(shape, "reference"), exact_inputs, gradient)
        given = forward(attention, (q, k, v, bias), gradient)
    errors = []
    for index, (found, expected) in enumerate(zip(given, exact, strict=True)):
        if index == 4:  # the bias
            found = found[..., -asking:, :]
        elif index in (0, 1):
            found = found[chosen, -asking:]
        else:
            found = found[chosen]
        errors.append(float((found.double() - expected).norm() / expected.norm()))
    largest = errors[0], max(errors[1:], default=0.0)
    allowed = TOLERANCES[shape.dtype]
    if not (largest[0] < allowed[0] and largest[1] < allowed[1]):
        raise SystemExit(f"wrong: errors of output and gradients {largest}, allowed {allowed}")
    return largest


def milliseconds(
    function: Callable[..., object], sets: list[tuple[Inputs, Tensor]], repeats: int
) -> tuple[float, bool]:
    """Return the median time of a call with inputs that are not cached, and whether as a graph.

    On CUDA this is device time. Calls are captured as a graph, because small kernels finish before
    Python launches the next one. Calls that cannot be captured are timed with their launches.
    """
    if sets[0][1].device.type != "cuda":
        times = []
        for index in range(repeats + 1):
            start = time.perf_counter()
            function(*sets[index % len(sets)])
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times[1:]), False
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # PyTorch requires warm-up on a side stream before a capture
        for index in range(max(4, len(sets))):
            function(*sets[index % len(sets)])
    torch.cuda.current_stream().wait_stream(side)
    calls = -(-GRAPH_CALLS // len(sets)) * len(sets)
    graph = capture(function, sets, calls)
    if graph is None:
        return device_time(lambda index: function(*sets[index % len(sets)]), repeats), False
    replays = max(5, -(-repeats // calls))
    return device_time(lambda _: graph.replay(), replays) / calls, True


def capture(
    function: Callable[..., object], sets: list[tuple[Inputs, Tensor]], calls: int
) -> torch.cuda.CUDAGraph | None:
    """Capture `calls` calls as one graph; None if they cannot be captured."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for index in range(calls):
                function(*sets[index % len(sets)])
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        sys.stderr.write(f"not captured as a graph: {str(error).splitlines()[0]}\n")
        torch.cuda.synchronize()
        return None
    return graph


def device_time(launch: Callable[[int], object], repeats: int) -> float:
    """Return the median milliseconds between events around a launch."""
    launch(0)
    torch.cuda.synchronize()
    times = []
    for index in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Keep the device busy for two milliseconds, so that it does not wait for the launch.
        torch.cuda._sleep(4_000_000)
        start.record()
        launch(index)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def input_sets(shape: Shape, device: torch.device) -> list[tuple[Inputs, Tensor]]:
    """Return enough inputs that none is still cached when it is used again."""
    one = make(shape, 1, device)
    held = sum(x.nbytes for x in (*one[0], one[1]) if x is not None)
    count = min(64, -(-2 * L2_BYTES // held)) if device.type == "cuda" else 1
    return [one, *(make(shape, seed, device) for seed in range(2, count + 1))]


def measure(shape: Shape, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Check a shape and time it; the compiled reference has no time if it runs out of memory."""
    fused = ours(shape, options.backend)
    errors = check(shape, fused, device)
    sets = input_sets(shape, device)
    chosen = choose(options.backend, *sets[0][0][:3], KINDS[shape.kind], "relu", shape.bias)
    contenders = {"fused": fused, "softmax": softmax(shape)}
    if not options.no_reference:
        torch.compiler.reset()
        contenders["reference"] = torch.compile(
            ours(shape, "reference"), fullgraph=True, dynamic=False, options=COMPILER_OPTIONS
        )
    runs = {"forward": forward}
    if shape.backward:
        runs["forward and backward"] = backward
    found: dict[str, Any] = {"backend": chosen, "times": {}}
    found |= {"output_error": errors[0], "gradient_error": errors[1]}
    for what, run in runs.items():
        row: dict[str, Any] = {**shape.floor(what), "with_launches": []}
        for name, attention in contenders.items():
            try:
                found_ms = milliseconds(partial(run, attention), sets, options.repeats)
            except torch.OutOfMemoryError:
                found_ms = None, True
            row[f"{name}_ms"], as_graph = found_ms
            if not as_graph:
                row["with_launches"].append(name)
        floor = max(row["arithmetic_floor_ms"], row["memory_floor_ms"])
        row["fraction_of_floor"] = floor / row["fused_ms"]
        if row.get("reference_ms"):
            row["times_faster"] = row["reference_ms"] / row["fused_ms"]
        found["times"][what] = row
    return found


def peak_memory(backend: str | None, device: torch.device) -> dict[str, float]:
    """Measure the memory of forward and backward over 16384 tokens, beyond inputs and results."""
    attention = ours(MEMORY, backend)
    errors = check(MEMORY, attention, device, queries=64)
    inputs, gradient = make(MEMORY, 1, device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = backward(attention, inputs, gradient)
    torch.cuda.synchronize()
    beyond = torch.cuda.max_memory_allocated() - before - sum(x.nbytes for x in results)
    return {"output_error": errors[0], "gradient_error": errors[1], "peak_mib": beyond / 2**20}


def write(name: str, shape: Shape, found: dict[str, Any], options: argparse.Namespace) -> None:
    """Print one line of JSON or a readable paragraph."""
    if options.json:
        described = asdict(shape) | {"dtype": str(shape.dtype).removeprefix("torch.")}
        about = {"device": options.device_name, "torch": torch.__version__}
        record = {"name": name, "shape": described, **found, **about}
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()
        return
    sizes = f"{shape.batch} x {shape.queries} x {shape.keys} keys, {shape.heads} x {shape.size}"
    extra = (", causal" if shape.causal else "") + (", bias" if shape.bias else "")
    sys.stdout.write(
        f"{name}: {sizes}, {str(shape.dtype).removeprefix('torch.')}{extra}; "
        f"{found.get('backend', options.backend or 'chosen backend')}, output off by "
        f"{found['output_error']:.0e}, gradients by {found['gradient_error']:.0e}\n"
    )
    on_gpu = options.device != "cpu"
    for what, row in found.get("times", {}).items():
        sys.stdout.write(
            f"  {what:21}{number(row['fused_ms'])} ms, compiled reference "
            f"{number(row.get('reference_ms'))} ms ({number(row.get('times_faster'), 1)} x), "
            f"PyTorch's softmax {number(row['softmax_ms'])} ms"
        )
        if on_gpu and shape.kind == "hyla":
            sys.stdout.write(
                f"; {row['operations'] / 1e9:7.1f} GFLOP "
                f"{number(row['arithmetic_floor_ms'])} ms, {row['bytes'] / 2**20:6.1f} MiB "
                f"{number(row['memory_floor_ms'])} ms: {row['fraction_of_floor']:.0%} of the floor"
            )
        sys.stdout.write("\n")
        if on_gpu and row["with_launches"]:
            names = ", ".join(row["with_launches"])
            sys.stdout.write(f"    timed with launches, not as a graph: {names}\n")
    if "peak_mib" in found:
        sys.stdout.write(
            f"  forward and backward: {found['peak_mib']:.0f} MiB beyond inputs and results\n"
        )
    sys.stdout.flush()


def number(value: float | None, digits: int = 3) -> str:
    """Format a number, or a dash, as a column."""
    return "       -" if value is None else f"{value:8.{digits}f}"


def main() -> None:
    """Check, measure and print each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*SHAPES, "memory"]
    kinds = [name for name, kind in KINDS.items() if kind.value_network != "deep"]
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu")
    parser.add_argument("--shape", nargs="+", choices=[*names, "tiny"], metavar="SHAPE",
                        default=names if on_gpu else ON_CPU,
                        help=f"{', '.join(names)}; on a CPU: {', '.join(ON_CPU)}")  # fmt: skip
    parser.add_argument("--kind", default="hyla", choices=kinds, metavar="KIND")
    parser.add_argument("--backend", choices=BACKENDS, help="default: chosen by the shape")
    parser.add_argument("--no-reference", action="store_true", help="do not time the reference")
    parser.add_argument("--repeats", type=int, default=30, help="calls to time, at least")
    parser.add_argument("--json", action="store_true", help="print one line of JSON per shape")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not on_gpu:
        parser.error(f"argument --device: {options.device}, but PyTorch finds no CUDA device")
    if options.repeats < 1:
        parser.error(f"argument --repeats: {options.repeats}, expected at least 1")
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("highest")
    options.device_name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    if not options.json:
        sys.stdout.write(
            f"{KINDS[options.kind].title}, {options.device_name}, PyTorch {torch.__version__}\n"
        )
    for name in options.shape:
        if name == "memory":
            if device.type != "cuda":
                parser.error("argument --shape: memory needs a GPU")
            write(name, MEMORY, peak_memory(options.backend, device), options)
            continue
        shape = TINY if name == "tiny" else SHAPES[name]
        shape = replace(shape, kind=options.kind)
        write(name, shape, measure(shape, options, device), options)
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
