"""Six trained models that come with the package: three kinds of attention on two tasks.

Load one by name with `hyla.load` or `hyla.train.load_run`; `hyla analyse NAME` decodes its codes.

>>> import hyla
>>> hyla.load("sraven-hyla").config.heads
16

Each is the model of seed 0 from table 1, with the hyperparameters that the search chose. Training
took 6.4 million instances of fuzzy logic or 20 million of SRAVEN.

| name           | held-out measure | codes differ by |
|----------------|------------------|-----------------|
| fuzzy-softmax  | R2 0.601         | at most 0.001   |
| fuzzy-linear   | R2 0.574         | at most 0.007   |
| fuzzy-hyla     | R2 0.777         | at most 0.002   |
| sraven-softmax | accuracy 56.2 %  | at most 0.001   |
| sraven-linear  | accuracy 55.9 %  | at most 0.002   |
| sraven-hyla    | accuracy 74.1 %  | at most 0.003   |

One seed does not represent a kind. On SRAVEN, the three seeds of HYLA reach 57.6 to 74.1 %.

The weights were rounded to half precision and are loaded as float32. The last column bounds the
absolute difference between a latent code and the float32 original's, measured on 512 held-out
instances. In each layer it is below 0.2 % of the largest code. Other effects of the rounding, on
held-out instances:

| measure                          | largest change                    | instances |
|----------------------------------|-----------------------------------|-----------|
| logits                           | 0.002 fuzzy logic, 0.021 SRAVEN   | 512       |
| R2 of fuzzy logic                | 0.0003                            | 4,096     |
| SRAVEN instances right or wrong  | 2 change sides                    | 4,096     |
| macro F1 of decoding, any layer  | 0.0011                            | 2,000     |

Each model is an ordinary run folder. Its `summary.json` holds the published measures (`members`),
the circumstances of the training (`origin`) and reference codes of the float32 original
(`float32_codes`). For each layer, these are the codes of the instance that rounding changes most.
"""

from pathlib import Path

# Upper bound on the absolute difference between a code and the float32 original's.
CODE_ERRORS = {
    "fuzzy-softmax": 0.001,
    "fuzzy-linear": 0.007,
    "fuzzy-hyla": 0.002,
    "sraven-softmax": 0.001,
    "sraven-linear": 0.002,
    "sraven-hyla": 0.003,
}
NAMES = tuple(CODE_ERRORS)


def folder(name: str) -> Path:
    """Return the run folder of a packaged model.

    >>> sorted(path.name for path in folder("sraven-hyla").iterdir())
    ['checkpoints', 'config.json', 'metrics.jsonl', 'summary.json']
    """
    return Path(__file__).parent / name
