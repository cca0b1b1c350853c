"""The package as a whole: what importing it costs, which way imports go, what the README says."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import hyla
from hyla.report import load
from hyla.report.markdown import BLOCKS, blocks_in, filled

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# Imports go from right to left only.
LAYERS = [
    *(
        "errors",
        "config",
        "files",
        "records",
        "statistics",
        "processes",
        "random",
        "native",
        "products",
        "drawing",
        "pretrained",
        "layers",
        "attention",
        "model",
        "tasks",
        "evaluation",
        "train",
    ),
    *("analysis", "experiments", "report", "demo", "cli"),
]


def run(code: str, folder: Path = ROOT) -> str:
    arguments = [sys.executable, "-c", code]
    result = subprocess.run(arguments, capture_output=True, text=True, cwd=folder)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_needs_torch_and_nothing_else() -> None:
    added = run(
        "import sys, torch; before = set(sys.modules); import hyla;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    ).split()
    third_party = {name for name in added if name not in sys.stdlib_module_names}
    assert third_party <= {"hyla", "torch"}
    loaded = run("import sys, hyla; print('triton' in sys.modules)")
    assert loaded.strip() == "False"  # it is imported at the first use of its kernels


def test_import_takes_little_longer_than_that_of_torch() -> None:
    code = (
        "import time; start = time.perf_counter(); import torch; middle = time.perf_counter();"
        "import hyla; print((time.perf_counter() - start) / (middle - start))"
    )
    assert min(float(run(code)) for _ in range(3)) < 1.5


def test_imports_go_one_way() -> None:
    for path in (ROOT / "hyla").rglob("*.py"):
        parts = path.relative_to(ROOT / "hyla").with_suffix("").parts
        if parts == ("__init__",) or parts[-1] == "commands":  # found by name, like those of `cli`
            continue
        allowed = LAYERS[: LAYERS.index(parts[0]) + 1]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hyla"):
                inside = node.module.split(".")[1:]
                # `from hyla import random` names the module, for the sake of `random.words`.
                for target in inside[:1] or [alias.name for alias in node.names]:
                    assert target in allowed, f"{path} imports {target}"


def test_no_module_of_a_task_is_imported_but_by_tasks_and_declarations() -> None:
    tasks = {
        path.stem for path in (ROOT / "hyla" / "tasks").iterdir() if path.suffix in ("", ".py")
    }
    tasks -= {"__init__", "__pycache__", "base", "check", "address", "published"}
    assert {"sraven", "fuzzy_logic", "recall"} <= tasks
    for path in (ROOT / "hyla").rglob("*.py"):
        if not {"tasks", "experiments"} & set(path.relative_to(ROOT / "hyla").parts):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                    "hyla.tasks"
                ):
                    named = {*node.module.split("."), *(alias.name for alias in node.names)}
                    assert not named & tasks, path


def test_public_names_have_docstrings_and_exist() -> None:
    for name in hyla.__all__:
        thing = getattr(hyla, name)
        if callable(thing):
            assert thing.__doc__, name


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        *(f"docs/{name}.md" for name in ("layer", "kernels", "export", "training", "dropout")),
    ],
)
def test_examples_run(name: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        run(block, tmp_path)


@pytest.mark.parametrize(
    "name, least, written",
    [
        ("README.md", 4, {"instance.png", "instances.parquet", "report.html", "runs"}),
        ("docs/export.md", 3, {"held-out.jsonl"}),
    ],
)
def test_the_commands_run(name: str, least: int, written: set[str], tmp_path: Path) -> None:
    text = (ROOT / name).read_text()
    commands = re.findall(r"^\.venv/bin/hyla (.*?)(?: +#.*)?$", text, re.MULTILINE)
    assert len(commands) >= least
    for command in commands:
        arguments = [sys.executable, "-m", "hyla.cli", *shlex.split(command)]
        result = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path)
        assert result.returncode == 0, (command, result.stderr)
        assert result.stdout
    assert {path.name for path in tmp_path.iterdir()} == written


def test_the_published_results_are_shown() -> None:
    found = load(ROOT / "no-runs", ROOT / "results").results
    path = ROOT / "docs/results.md"
    text = path.read_text()
    assert blocks_in(path) == list(BLOCKS)
    for name in BLOCKS:
        assert filled(text, name, found) == text


def test_the_readme_lists_every_kind_and_make_target() -> None:
    for kind in hyla.KINDS:
        assert f"`{kind}`" in README
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"make (\w+)", README):
        assert target in targets


def test_types_are_seen_from_outside(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nfrom hyla import MultiHeadAttention, attend\n"
        "layer = MultiHeadAttention(8, 2)\n"
        "good: torch.Tensor = layer.codes(torch.randn(1, 3, 8))\n"
        "bad: str = attend(good, good, good)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(program)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    errors = [line for line in result.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, result.stdout
    assert "program.py:5: error: Incompatible types" in errors[0]
