"""Load trained models from run folders and from the package."""

from pathlib import Path

from torch import Tensor

from hyla import pretrained
from hyla.errors import bad_value
from hyla.layers import member as one_member
from hyla.layers import replace_parameter
from hyla.model import Transformer, build
from hyla.train.checkpoint import Checkpoint, load, paths, step_of
from hyla.train.config import RunConfig
from hyla.train.runs import CHECKPOINTS, CONFIG, read_config

PARAMETERS = "parameters."  # prefix of their names in a checkpoint


def load_run(name_or_path: Path | str, step: int | None = None) -> tuple[RunConfig, Transformer]:
    """Load the configuration of a run and all its members, stacked along the population axis.

    name_or_path: a run folder, or the name of a packaged model (see `hyla.pretrained`). An existing
        path takes precedence over a name.
    step: load the checkpoint of this step instead of the newest one.

    A damaged checkpoint raises an error. Parameters stored in half precision become float32.
    `load_member` and `hyla.load` return a single member.

    >>> config, population = load_run("sraven-hyla")
    >>> config.task_name, config.model.heads, len(config.members)
    ('sraven', 16, 1)
    >>> population.norm.weight.shape, population.norm.weight.dtype
    (torch.Size([1, 128]), torch.float32)
    """
    config, found = _read(_folder(name_or_path), step)
    population = build(config.model, seed=0)
    for name, _ in list(population.named_parameters()):
        value = _at_least_float32(found.tensors[PARAMETERS + name])
        replace_parameter(population, name, value, requires_grad=True)
    return config, population


def load_member(
    name_or_path: Path | str, member: int = 0, step: int | None = None
) -> tuple[RunConfig, Transformer]:
    """Load the configuration of a run and one member as an ordinary model in eval mode.

    Takes the same `name_or_path` and `step` as `load_run`.

    >>> config, model = load_member("fuzzy-softmax")
    >>> config.members[0].seed, model.config.kind, model.training
    (0, 'softmax', False)
    """
    config, population = load_run(name_or_path, step)
    if not 0 <= member < len(config.members):
        expected = f"a whole number from 0 to {len(config.members) - 1}"
        raise bad_value("member", member, expected)
    return config, one_member(population, member).eval()


def _folder(name_or_path: Path | str) -> Path:
    path = Path(name_or_path)
    if path.exists():
        return path
    if str(name_or_path) in pretrained.NAMES:
        return pretrained.folder(str(name_or_path))
    names = ", ".join(pretrained.NAMES)
    expected = f"the folder of a run or the name of a packaged model ({names})"
    raise bad_value(str(name_or_path), "neither", expected)


def _read(path: Path, step: int | None) -> tuple[RunConfig, Checkpoint]:
    if not (path / CONFIG).is_file():
        raise bad_value(str(path), f"one without {CONFIG}", "the folder of a run")
    config = RunConfig.from_dict(read_config(path)[0])
    available = {step_of(file): file for file in paths(path / CHECKPOINTS)}
    chosen = max(available, default=None) if step is None else step
    if chosen is None or chosen not in available:
        steps = ", ".join(map(str, available)) or "none"
        expected = "a run with a checkpoint" if step is None else f"one with that of step {step}"
        raise bad_value(str(path), f"checkpoints of these steps: {steps}", expected)
    return config, load(available[chosen])


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.element_size() < 4 else x
