"""`hyla report`: all results on one page."""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from hyla.cli.shared import output as standard_output
from hyla.cli.shared import write_json
from hyla.errors import bad_value
from hyla.experiments.results import RESULTS, RUNS
from hyla.train.runs import list_runs


def report(
    output: Path = Path("report.html"),
    runs: Path = RUNS,
    results: Path = RESULTS,
    figures: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    readme: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    claims: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    json: bool = False,
) -> None:
    """Write one page of HTML with all results, figures and verdicts; it opens without a network.

    Args:
        output: The page.
        runs: Folder of the run folders, and of the results of smaller scales.
        results: Folder of the results at the paper's scale.
        figures: Also draw the main figures as PNG files, into this folder.
        readme: Also write the table of ablations and that of claims between the marks in this file.
        claims: Also write every claim with its evidence between the marks in this file.
        json: Print JSON only.
    """
    from hyla.report import write
    from hyla.report.markdown import BLOCKS, around, update
    from hyla.report.summary import counts, in_words

    if results != RESULTS and not results.exists():
        raise bad_value("results", results, "a folder that is there")
    for name, folder in (("runs", runs), ("results", results)):
        if folder.exists() and not folder.is_dir():
            raise bad_value(name, folder, "a folder")
    blocks = {"results": readme, "claims": claims}
    files = {name: file for name, file in blocks.items() if file is not None}
    for name, file in files.items():  # what is wrong is told before anything is written
        around(file, name)
    found = write(output, results, runs)
    drawn: list[Path] = []
    if figures is not None:
        from hyla.report.static import draw_figures

        drawn = draw_figures(found, figures)
    for name, file in files.items():
        update(file, name, BLOCKS[name](found))
    problems = [problem for one in found for problem in one.problems]
    problems += [f"{s.path} is damaged: {s.problem}" for s in list_runs(runs) if s.problem]
    problems += [
        f"There is no folder {folder}" for folder in (results, runs) if not folder.exists()
    ]
    if json:
        experiments = {
            one.experiment.name: {
                "scale": one.scale,
                "points": one.points,
                "measured": one.measured,
                "verdicts": [
                    {"claim": claim.text, "outcome": judged.outcome, "evidence": judged.evidence}
                    for claim, judged in one.verdicts
                ],
            }
            for one in found
        }
        write_json(
            {
                "page": str(output),
                "figures": [str(path) for path in drawn],
                "outcomes": counts(found),
                "experiments": experiments,
                "problems": problems,
            }
        )
        return
    console = standard_output()
    lines = [*in_words(found), *problems, f"Page: {output}", *(f"Figure: {path}" for path in drawn)]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
