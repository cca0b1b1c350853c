"""The first screen of the report."""

from html import unescape
from pathlib import Path

from test_report_rows import write_results

from hyla.experiments import EXPERIMENTS
from hyla.experiments.declare import Verdict
from hyla.report import load
from hyla.report.summary import first_screen, verdict


def test_the_first_screen_has_all_of_the_evidence(tmp_path: Path) -> None:
    found = load(*write_results(tmp_path))
    text = unescape(first_screen(found)).replace('</summary><span class="evidence">', ": ")
    judged = [one for experiment in found for _, one in experiment.verdicts if one.evidence]
    assert len(judged) > 10
    for one in judged:
        assert f"<summary>Evidence: {one.evidence}</span>" in text


def test_what_went_wrong_stays_in_one_piece() -> None:
    claim = EXPERIMENTS["ablation"].claims[0]
    reason = "rows could not be judged (KeyError: mean)"
    assert f">{reason}<" in verdict(claim, Verdict("not measured", reason), "paper", " (link)")
    assert "<details" not in verdict(claim, Verdict("in part", "1 of 2 hold: a; b"), "paper")
