"""A small end-to-end demonstration of the layer: `python -m hyla.demo`.

First the paper's identity, for every kind: the layer equals a sum of generated value networks.
Then three kinds learn fuzzy logic functions from examples in their context, three seeds of each
trained together as one stacked population. The models and the training are far smaller than the
paper's: this shows that everything works, not how well the kinds compare.
"""

import time

import torch
from torch import Tensor

from hyla.attention.hypernetwork import value_networks
from hyla.attention.layer import MultiHeadAttention
from hyla.attention.variants import KINDS
from hyla.layers import stack
from hyla.model import ModelConfig, Transformer, build
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig, pooled_r2

SEEDS, BATCH, STEPS = 3, 64, 1000
TASK = FuzzyLogicConfig(variables=3, examples=16, held_out=0.3)


@torch.no_grad()
def identity_error(kind: str) -> float:
    """Largest difference between a layer and the sum over keys of its value networks."""
    layer = MultiHeadAttention(24, 6, kind=kind, positions="t5", dtype=torch.float64)
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    y = value_networks(layer, x)(x).sum(dim=-2) + layer.output.bias
    return float((y - layer(x)).abs().max())


def train(kind: str) -> tuple[Transformer, dict[str, Tensor]]:
    """Trains all seeds at once; returns them with the variance they explain on each split."""
    config = ModelConfig(
        input_size=TASK.variables + 1, output_size=1, layers=2, width=32, heads=4, head_size=4,
        hidden_size=64, attention=kind, max_tokens=TASK.examples,
    )  # fmt: skip
    task = FuzzyLogic(TASK, range(SEEDS))
    population = stack([build(config, seed) for seed in range(SEEDS)])
    optimiser = torch.optim.AdamW(population.parameters(), lr=3e-3)

    for step in range(STEPS):
        batch = task.batch("train", range(step * BATCH, (step + 1) * BATCH))
        error_MB = population(batch.inputs)[..., -1, 0] - batch.query_target
        optimiser.zero_grad()
        error_MB.square().mean(dim=1).sum().backward()  # each member has a loss of its own
        optimiser.step()
    explained = {}
    for split in ("train", "held_out"):
        batch = task.batch(split, range(STEPS * BATCH, STEPS * BATCH + 1024))  # not trained on
        with torch.no_grad():
            explained[split] = pooled_r2(population(batch.inputs)[..., -1, 0], batch)
    return population, explained


def main() -> None:
    """Prints the two parts of the demonstration."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as fast for tensors this small, and it shares a busy machine well
    print("Every layer is a sum over keys of value networks that the latent code generates.")
    print("Largest difference of the two computations, in float64:\n")
    for kind in KINDS:
        print(f"  {kind:34}{identity_error(kind):10.1e}")
    print(f"\nLearning fuzzy logic from {TASK.examples} examples, {STEPS} steps, {SEEDS} seeds.")
    print("Explained variance (R2) on new instances, mean +- standard error over seeds:\n")
    print("            functions of training    functions held out")
    for kind in ("softmax", "linear", "hyla"):
        start = time.perf_counter()
        population, explained = train(kind)
        columns = [
            f"{r2.mean():8.2f} +- {r2.std() / SEEDS**0.5:.2f}{'':8}" for r2 in explained.values()
        ]
        print(f"  {kind:10}{''.join(columns)}({time.perf_counter() - start:.0f} s)")
    tokens = FuzzyLogic(TASK, range(SEEDS)).batch("held_out", 4).inputs
    with torch.no_grad():
        codes = population.latent_codes(tokens, layers=[-1], queries=[-1], keys=[-1])
    print("\nLatent codes of the last token attending to itself, last layer, first HYLA model:\n")
    for code in codes[population.config.layers - 1][0, :, 0, 0]:
        print("  " + "".join(f"{float(score):8.2f}" for score in code))


if __name__ == "__main__":
    main()
