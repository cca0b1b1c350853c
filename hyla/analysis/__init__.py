"""Analysis of latent codes: collect them, decode from them, embed and compare them.

>>> import hyla
>>> from hyla.analysis import collect, decode, embed, mean_codes
>>> from hyla.tasks.sraven import SravenConfig
>>> task = SravenConfig(features=2, values=5)
>>> model = hyla.build(hyla.ModelConfig(5, 5, layers=2, width=8, heads=3, buckets=18), seed=0)
>>> train, held_out = (collect(model, task, s, 100, seed=0) for s in ("train", "held_out"))
>>> held_out.codes.shape, sorted(held_out.labels)
((2, 100, 3), ['inputs', 'prediction', 'right', 'rule', 'target'])
>>> found = decode(train, held_out, "rule")
>>> found.measured.macro_f1.shape, found.control.macro_f1.shape  # by layer
((2,), (2,))
>>> embed(held_out, layers=[-1])[1].shape
(100, 2)
>>> means = mean_codes(held_out, "rule", layer=-1)
>>> means.cosine.shape == (len(means.names), len(means.names))
True

`collect_run(folder, member, split, instances)` does so for what a run has learned, and
`attention_codes(scores)` takes the attention scores of any other model. Needs scikit-learn.
"""

from hyla.analysis.activity import active_units
from hyla.analysis.codes import Codes, attention_codes, load_codes
from hyla.analysis.collect import collect, collect_inputs, collect_run
from hyla.analysis.compare import MeanCodes, cosine_similarity, explained, mean_codes, sample
from hyla.analysis.decode import Decoding, Scores, decode
from hyla.analysis.draw import draw_embedding
from hyla.analysis.embed import embed

__all__ = [
    "Codes",
    "Decoding",
    "MeanCodes",
    "Scores",
    "active_units",
    "attention_codes",
    "collect",
    "collect_inputs",
    "collect_run",
    "cosine_similarity",
    "decode",
    "draw_embedding",
    "embed",
    "explained",
    "load_codes",
    "mean_codes",
    "sample",
]
