"""The command `hyla`: one typed function for each subcommand."""

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from tyro.extras import SubcommandApp

import hyla
from hyla.cli import analyse, doctor, report, reproduce, runs, train
from hyla.cli.parse import as_typed, parse
from hyla.cli.shared import command
from hyla.tasks.fuzzy_logic import commands as fuzzy
from hyla.tasks.sraven import commands as sraven

# Imported name and the name to install it by.
OPTIONAL_PACKAGES = {
    "jinja2": "jinja2",
    "matplotlib": "matplotlib",
    "pyarrow": "pyarrow",
    "sklearn": "scikit-learn",
    "tensorboard": "tensorboard",
    "threadpoolctl": "scikit-learn",
    "wandb": "wandb",
}

app = SubcommandApp()
app.command(
    sraven.app, name="sraven", help="Symbolic Raven's matrices: show, solve, measure, export."
)
app.command(fuzzy.app, name="fuzzy", help="Fuzzy logic functions to be learned in context.")
app.command(train.app, name="train", help="Train a population of models, into a run folder.")
command(app, "runs")(runs.runs)
command(app, "reproduce")(reproduce.reproduce)
command(app, "analyse")(analyse.analyse)
command(app, "report")(report.report)
command(app, "doctor")(doctor.doctor)


@contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """Lets a request to end run what cleans up, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    # What the process was started to ignore, as by nohup, stays ignored.
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _fail(message: str, code: int) -> SystemExit:
    sys.stderr.write(" ".join(message.split()) + "\n")
    return SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command of the command line; what is wrong with it is told in one line."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    arguments = sys.argv[1:] if arguments is None else arguments
    if [*arguments] == ["--version"]:
        sys.stdout.write(f"hyla {hyla.__version__}\n")
        return
    try:
        with _ended_like_interrupted():
            parse(app, arguments)()
            sys.stdout.flush()
    except KeyboardInterrupt as error:
        raise _fail(str(error) or "interrupted", 130) from None
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python must not flush it again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL_PACKAGES:
            raise
        name = OPTIONAL_PACKAGES[error.name]
        raise _fail(f"error: this needs {name}: pip install {name}", 2) from None
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise _fail(f"error: {reason}", 2) from None
    except ValueError as error:
        raise _fail(f"error: {as_typed(str(error), arguments)}", 2) from None
