"""`hyla analyse`: what the latent codes of a trained model say about its tasks."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from hyla.analysis.codes import Codes
from hyla.analysis.collect import collect_members
from hyla.analysis.compare import MeanCodes, mean_codes, silhouette
from hyla.analysis.decode import Decoding, decode
from hyla.analysis.draw import draw_embedding
from hyla.analysis.embed import embed
from hyla.cli.shared import checked_device, output as standard_output, write_json
from hyla.errors import bad_value, unknown_name
from hyla.files import new_file, without_nan
from hyla.tasks.sraven_draw import save

PICTURES = ("png", "svg")
# For each task: what is decoded, what clusters are compared with, and what colours a figure.
DECODED = {"sraven": "rule", "fuzzy_logic": "terms"}
CLUSTERS = {"sraven": ("rule", "target"), "fuzzy_logic": ("function", "term 1")}
