"""Time training of the paper's language model, in tokens/s: `python benchmarks/language.py`.

The causal model has 35 million parameters (6 layers, width 512, 8 heads, 1024 tokens, 32,000
words). It trains on random words with bf16 autocast, fused AdamW, and forward, cross-entropy and
backward compiled as one function. A rate is printed only if the first loss matches uncompiled fp32
reference attention and its gradient is as close as bf16 allows. All kinds are timed in one run.
"""

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from hyla import ModelConfig, MultiHeadAttention, Transformer, build, language_model
from hyla.train.population import COMPILER_OPTIONS

TOLERANCE = 0.02
# The initial loss is near log(words) whatever attention does, so the gradient is checked too. Its
# relative error may be 1.5 times that of the reference in bf16, which is 1 % for softmax and 25 %
# for HYLA, where rounding may flip a ReLU.
AS_BF16 = 1.5

Loss = Callable[[Tensor], Tensor]


def make(config: ModelConfig, device: torch.device, compiled: bool) -> tuple[Transformer, Loss]:
    """Return a model and its bf16 loss as a function of words `[batch, tokens + 1]`."""
    model = build(config, seed=0).to(device)

    def loss(words: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            return cross_entropy(model, words)

    if compiled:
        loss = torch.compile(loss, fullgraph=True, dynamic=False, options=COMPILER_OPTIONS)
    return model, loss


def cross_entropy(model: Transformer, words: Tensor) -> Tensor:
    """Compute the mean next-word loss."""
    logits = model(words[:, :-1]).float()
    return F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


def with_reference_attention(model: Transformer) -> Transformer:
    """Return a copy that uses reference attention."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, MultiHeadAttention):
            layer.backend = "reference"
    return model


def check(model: Transformer, loss: Loss, words: Tensor) -> tuple[float, float]:
    """Return the errors of loss and gradient; SystemExit if they are too large.

    Checks the timed function at its full batch size, filled with copies of two sequences (one, if
    the batch is odd).
    """
    few = words[: 1 + (len(words) % 2 == 0)]
    reference = with_reference_attention(model)

    def both(model: Transformer, value: Tensor) -> tuple[Tensor, Tensor]:
        gradients = torch.autograd.grad(value, list(model.parameters()))
        return value.detach(), torch.cat([gradient.flatten() for gradient in gradients])

    given, gradient = both(model, loss(few.repeat(len(words) // len(few), 1)))
    exact, exact_gradient = both(reference, cross_entropy(reference, few))
    with torch.autocast(words.device.type, torch.bfloat16, cache_enabled=False):
        rounded = cross_entropy(reference, few)
    rounded_gradient = both(reference, rounded)[1]
    off, usual = (
        float((x - exact_gradient).norm() / exact_gradient.norm())
        for x in (gradient, rounded_gradient)
    )
    errors, allowed = (abs(float(given / exact - 1)), off), (TOLERANCE, AS_BF16 * usual)
    if not (errors[0] < allowed[0] and errors[1] < allowed[1]):
        raise SystemExit(f"wrong: errors of loss and gradients {errors}, allowed {allowed}")
    return errors


def milliseconds(model: Transformer, loss: Loss, words: Tensor, steps: int) -> tuple[float, float]:
    """Return the median time of a step (forward, backward, AdamW) and the last loss."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    times, warmup = [], min(5, steps)
    for _ in range(warmup + steps):
        if words.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        value = loss(words)
        value.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if words.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[warmup:]) * 1e3, float(value.detach())


def tiny(config: ModelConfig) -> ModelConfig:
    """Return a model small enough for tests on a CPU."""
    sizes = {"layers": 2, "width": 32, "heads": 4, "head_size": 8, "hidden_size": 64}
    return replace(config, **sizes, input_size=101, output_size=101)


def main() -> None:
    """Check, measure and print each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--kind", nargs="+", default=["softmax", "hyla"])
    parser.add_argument("--batch", type=int, default=16, help="sequences per step")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens per sequence")
    parser.add_argument("--steps", type=int, default=20, help="steps to time")
    parser.add_argument("--mode", default="compiled", choices=["compiled", "eager"])
    parser.add_argument("--tiny", action="store_true", help="a tiny model, for a CPU")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"argument --device: {options.device}, but PyTorch finds no CUDA device")
    if min(options.batch, options.tokens, options.steps) < 1:
        parser.error("arguments --batch, --tokens and --steps: expected at least 1")
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("highest")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    first: float | None = None
    for kind in options.kind:
        torch.compiler.reset()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        config = language_model(kind)
        if options.tiny:
            config = tiny(config)
        model, loss = make(config, device, options.mode == "compiled")
        generator = torch.Generator().manual_seed(0)
        shape = (options.batch, options.tokens + 1)
        words = torch.randint(config.input_size, shape, generator=generator).to(device)
        errors = check(model, loss, words)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        step, last = milliseconds(model, loss, words, options.steps)
        rate = options.batch * options.tokens / step * 1e3
        first = rate if first is None else first
        result = {
            "kind": kind, "mode": options.mode, "batch": options.batch,
            "tokens": options.tokens,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "milliseconds_a_step": round(step, 3), "tokens_per_second": round(rate),
            "of_the_first": round(rate / first, 3),
            "loss_error": errors[0], "gradient_error": errors[1], "last_loss": round(last, 3),
            "device": name, "torch": torch.__version__,
        }  # fmt: skip
        if device.type == "cuda":
            result["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        write(result, options.json)
        del model, loss


def write(result: dict[str, object], as_json: bool) -> None:
    """Print one line, as JSON or readable."""
    line = json.dumps(result)
    if not as_json:
        line = (
            "{kind:10}{parameters:12,} parameters, batch {batch}, {mode}:"
            "{milliseconds_a_step:9.2f} ms/step,{tokens_per_second:10,} tokens/s "
            "({of_the_first:.2f} of the first); loss off by {loss_error:.0e}, gradients by "
            "{gradient_error:.0e}".format(**result)
        )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
