"""`hyla report`: all results on one page."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from hyla.cli.shared import output as standard_output
from hyla.cli.shared import write_json
from hyla.errors import bad_value
from hyla.experiments.judge import NOT_TESTED, Verdict
from hyla.experiments.run import RESULTS, RUNS
from hyla.experiments.spec import Claim


def report(
    output: Path = Path("report.html"),
    runs: Path = RUNS,
    results: Path = RESULTS,
    figures: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    readme: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    json: bool = False,
) -> None:
    """Write one HTML page with all results, figures and verdicts. It needs no network.

    Args:
        output: The page.
        runs: Folder of local run folders.
        results: Folder of published results.
        figures: Also draw all figures as PNG and SVG files into this folder.
        readme: Also write table 1 or the verdicts between their marks in this Markdown file.
        json: Print JSON only.
    """
    from hyla.report import write, write_figures
    from hyla.report.markdown import blocks_in, update

    if results != RESULTS and not results.exists():
        raise bad_value("results", results, "an existing folder")
    for name, folder in (("runs", runs), ("results", results)):
        if folder.exists() and not folder.is_dir():
            raise bad_value(name, folder, "a folder")
    if readme is not None:
        blocks_in(readme)  # an error before anything is written
    content = write(output, runs, results)
    drawn: list[Path] = []
    if figures is not None:
        drawn = write_figures(content, figures)
    if readme is not None:
        update(readme, content.results)
    counts = content.outcomes
    if json:
        experiments = {
            one.experiment.name: {
                "points": len(one.points),
                "measured": one.measured,
                "verdicts": [_verdict(*verdict) for verdict in one.verdicts],
            }
            for one in content.results
        }
        write_json(
            {
                "page": str(output),
                "figures": [str(path) for path in drawn],
                "outcomes": counts,
                "experiments": experiments,
                "problems": list(content.problems),
            }
        )
        return
    console = standard_output()
    files = [f"Page: {output}", *(f"Figure: {path}" for path in drawn)]
    parts = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    claims = f"{sum(counts.values())} claims of the paper: {parts}."
    for line in [claims, *content.problems, *files]:
        console.print(line, soft_wrap=True, markup=False)


def _verdict(claim: Claim, verdict: Verdict) -> dict[str, Any]:
    """Return a claim with its verdict as plain values."""
    measured = [asdict(one) | {"outcome": one.outcome} for one in verdict.comparisons]
    untested = [{"contrast": asdict(one), "outcome": NOT_TESTED} for one in verdict.untested]
    contrasts = [*measured, *untested]
    return {"claim": claim.text, "outcome": verdict.outcome, "comparisons": contrasts}
