# ---
# jupytext:
#   formats: py:percent
# ---

# %% [markdown]
# # From clone to the first figure
#
# `make setup` installs everything into `.venv`. The results of all our trainings are in `results/`, so the first figure needs no
# training: three rows of the paper's table 1, on fuzzy logic.

# %%
from pathlib import Path

from hyla.report import load
from hyla.report.figures import draw_headline

content = load(Path("../../runs"), Path("../../results"))
headline, rows, verdict = content.headlines[0]
print(headline.question, "-", verdict.outcome)
draw_headline(headline, rows)

# %% [markdown]
# Pale dots are seeds, circles our means with standard errors, diamonds the paper's values. The whole page is `hyla report`.
#
# Each of these numbers is a training. We make a short one: HYLA on a reduced task with functions of three variables, 16 examples in
# context and 60 % of the functions held out of training.

# %%
import tempfile
from dataclasses import replace

import torch

from hyla.experiments.demo import run
from hyla.train import train

torch.set_num_threads(1)  # as fast for a model this small
folder = Path(tempfile.mkdtemp()) / "my-run"
config = replace(run("hyla"), steps=500, log_every=100, evaluation_instances=512)
summary = train(config, folder, device="cpu", compiled=False)
print(sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# The run folder has everything: the configuration, the metrics, checkpoints and a summary. The loss falls:

# %%
import json

for line in (folder / "metrics.jsonl").read_text().splitlines():
    record = json.loads(line)
    if "split" not in record:
        print(f"step {record['step']}: loss {record['loss']:.3f}")

# %% [markdown]
# 500 steps are a tenth of what this task takes. `make reproduce` trains three kinds on three seeds to the end, in two to four minutes, and opens
# on the comparison. `hyla reproduce ablation` does the same for table 1 ([guide](../reproduce.md)).
