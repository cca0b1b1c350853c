"""Print SRAVEN instances and their answers in a terminal."""

import math
from typing import TYPE_CHECKING

from hyla.tasks.sraven.export import Record
from hyla.tasks.sraven.text import panel_text

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = ("cyan", "yellow", "green", "magenta", "bright_blue", "red", "white", "bright_black")
ONE_LINE = 6  # panels with more symbols are printed as a square


def print_instance(console: "Console", record: Record) -> None:
    """Print the matrix, the rules with their slots, and all consistent answers.

    Symbols of the same rule have the same colour.
    """
    from rich.table import Table
    from rich.text import Text

    address = f"seed {record['seed']}, split {record['split']}, instance {record['index']}"
    size = f"{record['features']} features of {record['values']} values"
    console.print(f"SRAVEN, {address}: {size}\n", soft_wrap=True)
    colours = [COLOURS[k % len(COLOURS)] for k in range(record["features"])]
    orders, panels = record["orders"], record["panels"]
    width = len(str(record["values"] - 1))

    per_line = len(colours) if len(colours) <= ONE_LINE else math.ceil(math.sqrt(len(colours)))

    def shown(row: int, column: int, per_line: int = per_line) -> Text:
        symbols = zip(panels[row][column], orders[column], strict=True)
        parts = [Text(f"{symbol:{width}}", style=colours[feature]) for symbol, feature in symbols]
        starts = range(0, len(parts), per_line)
        return Text("\n").join(Text(" ").join(parts[i : i + per_line]) for i in starts)

    matrix = Table("", "column 0", "column 1", "column 2", show_lines=True)
    for row in range(3):
        last = shown(row, 2) if row < 2 else Text("?", justify="center")
        matrix.add_row(f"row {row}", shown(row, 0), shown(row, 1), last)
    console.print(matrix)
    console.print(Text("True answer: ") + shown(2, 2, len(colours)) + Text("\n"))
    rules = Table("feature", "rule", "slots", "row 0", "row 1", "row 2")
    for feature, rule in enumerate(record["rules"]):
        slots = [order.index(feature) for order in orders]
        rows = [" ".join(f"{panels[r][c][slots[c]]:{width}}" for c in range(3)) for r in range(3)]
        rules.add_row(str(feature), Text(rule, style=colours[feature]), panel_text(slots), *rows)
    console.print(rules)
    shown_orders = "; ".join(f"column {c}: {panel_text(order)}" for c, order in enumerate(orders))
    console.print(f"Order of the features in {shown_orders}\n", soft_wrap=True)
    print_answers(console, record)


def print_answers(console: "Console", result: Record) -> None:
    """Print the consistent answers of a record, or of an instance read from JSON and solved."""
    from rich.table import Table

    answers, hypotheses = result["answers"], result["hypotheses"]
    known, mark = (
        result.get("given", result.get("answer")),
        "true" if "answer" in result else "given",
    )
    if answers:
        count = "1 consistent answer" if len(answers) == 1 else f"{len(answers)} consistent answers"
        count += f" from {hypotheses} " + ("hypothesis" if hypotheses == 1 else "hypotheses")
        prior = str(result.get("prior", "all")).replace("_", "-")
        console.print(f"{count}, probabilities with the rules of {prior}:")
        examples = result.get("examples")
        table = Table("answer", "probability", "", *["example: rule (slots)"] * bool(examples))
        for number, answer in enumerate(answers):
            row = [panel_text(answer), f"{result['probabilities'][number]:.6f}"]
            row.append(mark if answer == known else "")
            if examples:
                parts = (
                    f"{part['rule']} ({panel_text(part['slots'])})" for part in examples[number]
                )
                row.append(", ".join(parts))
            table.add_row(*row)
        console.print(table)
    else:
        console.print("No rules fit this context: there is no consistent answer.")
    if "given" in result:
        fits = "consistent" if result["given_is_consistent"] else "not consistent with the context"
        probability = f"its probability is {result['given_probability']:.6f}"
        console.print(f"The given answer {panel_text(result['given'])} is {fits}; {probability}.")
