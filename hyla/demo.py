"""A small end-to-end demonstration of the layer: `python -m hyla.demo`.

First the paper's identity, for every kind: the layer equals a sum of generated value networks.
Then three kinds learn fuzzy logic functions from examples in their context, three seeds of each
trained together as one population, into run folders. The models and the training are far smaller
than the paper's: this shows that everything works, not how well the kinds compare.
"""

from pathlib import Path
from statistics import mean, stdev

import torch

from hyla.attention.hypernetwork import value_networks
from hyla.attention.layer import MultiHeadAttention
from hyla.attention.variants import KINDS
from hyla.model import ModelConfig
from hyla.tasks.fuzzy_logic import FuzzyLogic, FuzzyLogicConfig
from hyla.train import RunConfig, grid, load_run, train

SEEDS, STEPS = 3, 2000
SPLITS = ("train", "held_out")
TASK = FuzzyLogicConfig(variables=3, examples=16, held_out=0.3)


@torch.no_grad()
def identity_error(kind: str) -> float:
    """Largest difference between a layer and the sum over keys of its value networks."""
    layer = MultiHeadAttention(24, 6, kind=kind, positions="t5", dtype=torch.float64)
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    y = value_networks(layer, x)(x).sum(dim=-2) + layer.output.bias
    return float((y - layer(x)).abs().max())


def demo_run(kind: str) -> RunConfig:
    """The training of one kind."""
    model = ModelConfig(
        input_size=TASK.variables + 1, output_size=1, layers=2, width=32, heads=4, head_size=4,
        hidden_size=64, attention=kind, max_tokens=TASK.examples,
    )  # fmt: skip
    return RunConfig(
        TASK, model, grid(range(SEEDS), [3e-3], [0.01], [100]), STEPS, batch=64, splits=SPLITS,
        evaluation_instances=1024,
    )  # fmt: skip


def main() -> None:
    """Prints the two parts of the demonstration."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as fast for tensors this small, and it shares a busy machine well
    print("Every layer is a sum over keys of value networks that the latent code generates.")
    print("Largest difference of the two computations, in float64:\n")
    for kind in KINDS:
        print(f"  {kind:34}{identity_error(kind):10.1e}")
    print(f"\nLearning fuzzy logic from {TASK.examples} examples, {STEPS} steps, {SEEDS} seeds.")
    print("Explained variance (pooled R2) on new instances, mean +- standard error over seeds:\n")
    print("            functions of training    functions held out")
    for kind in ("softmax", "linear", "hyla"):
        folder = Path("runs", f"demo-{kind}")  # trained once; then this only shows the result
        summary = train(demo_run(kind), folder, device="cpu", compiled=False)
        columns = []
        for split in SPLITS:
            r2 = [member["evaluation"][split]["pooled_r2"] for member in summary["members"]]
            columns.append(f"{mean(r2):8.2f} +- {stdev(r2) / SEEDS**0.5:.2f}{'':8}")
        print(f"  {kind:10}{''.join(columns)}({folder}, {summary['seconds']:.0f} s)")
    config, population = load_run(folder)
    tokens = FuzzyLogic(TASK, range(SEEDS)).batch("held_out", 4).inputs
    with torch.no_grad():
        codes = population.latent_codes(tokens, layers=[-1], queries=[-1], keys=[-1])
    print("\nLatent codes of the last token attending to itself, last layer, first HYLA model:\n")
    for code in codes[config.model.layers - 1][0, :, 0, 0]:
        print("  " + "".join(f"{float(score):8.2f}" for score in code))


if __name__ == "__main__":
    main()
