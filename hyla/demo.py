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

SEEDS, BATCH, EXAMPLES, VARIABLES, STEPS = 3, 64, 16, 2, 1000


@torch.no_grad()
def identity_error(kind: str) -> float:
    """Largest difference between a layer and the sum over keys of its value networks."""
    layer = MultiHeadAttention(24, 6, kind=kind, positions="t5", dtype=torch.float64)
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    y = value_networks(layer, x)(x).sum(dim=-2) + layer.output.bias
    return float((y - layer(x)).abs().max())


def fuzzy_functions(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Examples of random functions (literal and literal) or (literal and literal), per member.

    Each token is an input with its target; the target of the last is hidden, and returned.
    """
    lead = (SEEDS, BATCH)
    x = torch.rand(*lead, EXAMPLES, VARIABLES, generator=generator)
    negated = torch.rand(*lead, 1, 2, VARIABLES, generator=generator) < 0.5
    literals = torch.where(negated, 1 - x.unsqueeze(-2), x.unsqueeze(-2))
    targets = literals.amin(dim=-1).amax(dim=-1)
    tokens = torch.cat((x, targets.unsqueeze(-1)), dim=-1)
    tokens[..., -1, -1] = 0
    return tokens, targets[..., -1]


def train(kind: str) -> tuple[Transformer, Tensor, Tensor]:
    """Trains all seeds at once; returns them with their explained variance before and after."""
    config = ModelConfig(
        input_size=VARIABLES + 1, output_size=1, layers=2, width=32, heads=4, head_size=4,
        hidden_size=64, attention=kind, max_tokens=EXAMPLES,
    )  # fmt: skip
    population = stack([build(config, seed) for seed in range(SEEDS)])
    optimiser = torch.optim.AdamW(population.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)

    def explained(batches: int) -> Tensor:
        fresh = torch.Generator().manual_seed(1)
        errors, targets = [], []
        with torch.no_grad():
            for _ in range(batches):
                tokens, target = fuzzy_functions(fresh)
                errors.append((population(tokens)[..., -1, 0] - target).square())
                targets.append(target)
        variance = torch.cat(targets, dim=1).var(dim=1)
        return 1 - torch.cat(errors, dim=1).mean(dim=1) / variance

    before = explained(16)
    for _ in range(STEPS):
        tokens, target = fuzzy_functions(generator)
        loss_M = (population(tokens)[..., -1, 0] - target).square().mean(dim=1)
        optimiser.zero_grad()
        loss_M.sum().backward()
        optimiser.step()
    return population, before, explained(16)


def main() -> None:
    """Prints the two parts of the demonstration."""
    torch.manual_seed(0)
    print("Every layer is a sum over keys of value networks that the latent code generates.")
    print("Largest difference of the two computations, in float64:\n")
    for kind in KINDS:
        print(f"  {kind:34}{identity_error(kind):10.1e}")
    print(
        f"\nLearning fuzzy logic from {EXAMPLES} examples in context, {STEPS} steps, {SEEDS} seeds."
    )
    print("Explained variance (R2) of the last example, mean +- standard error:\n")
    for kind in ("softmax", "linear", "hyla"):
        start = time.perf_counter()
        population, before, after = train(kind)
        error = after.std() / SEEDS**0.5
        print(
            f"  {kind:10} before {before.mean():6.2f}   after {after.mean():5.2f} +- {error:.2f}"
            f"   ({time.perf_counter() - start:.0f} s)"
        )
    tokens, _ = fuzzy_functions(torch.Generator().manual_seed(2))
    with torch.no_grad():
        codes = population.latent_codes(tokens, layers=[-1], queries=[-1], keys=[-1])
    print("\nLatent codes of the last token attending to itself, last layer, first HYLA model:\n")
    for code in codes[population.config.layers - 1][0, :4, 0, 0]:
        print("  " + "".join(f"{float(score):8.2f}" for score in code))


if __name__ == "__main__":
    main()
