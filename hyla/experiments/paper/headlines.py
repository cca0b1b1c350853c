"""The five comparisons on the first screen of the report."""

from hyla.experiments.paper.ablation import FUZZY, HYLA, LINEAR, SOFTMAX, SRAVEN, better, title
from hyla.experiments.paper.codes import CODES_SRAVEN
from hyla.experiments.paper.latent_codes import CONTROL, F1
from hyla.experiments.paper.sraven import HEADS_EXPERIMENT, THREE
from hyla.experiments.spec import Claim, Headline

SHORT = {SOFTMAX: "softmax", LINEAR: "linear", HYLA: "HYLA"}
WITHOUT_RMS_HEAD, WITHOUT_NONLINEARITY = title("hyla-rms_head"), title("hyla-nonlinearity")


def _of_task(task: str) -> Headline:
    claim = Claim(
        "HYLA generalises better than softmax and linear attention",
        tuple(
            contrast
            for contrast in better((HYLA, SOFTMAX), (HYLA, LINEAR))
            if all(term.axes["task"] == task for term in contrast.terms)
        ),
    )
    places = {name: {"row": row, "task": task} for row, name in SHORT.items()}
    measure = {FUZZY: "R2", SRAVEN: "accuracy"}[task]
    title_ = {FUZZY: "Fuzzy logic", SRAVEN: "SRAVEN"}[task]
    return Headline(f"{title_}: does HYLA generalise better?", "ablation", claim, places, measure)


_PARTS = {"HYLA": HYLA, "no RMSHead": WITHOUT_RMS_HEAD, "no nonlinearity": WITHOUT_NONLINEARITY}
HEADLINES = (
    _of_task(FUZZY),
    _of_task(SRAVEN),
    Headline(
        "SRAVEN: does HYLA need both of its parts?",
        "ablation",
        Claim(
            "HYLA generalises better than without RMSHead or without the nonlinearity",
            tuple(
                contrast
                for contrast in better((HYLA, WITHOUT_RMS_HEAD), (HYLA, WITHOUT_NONLINEARITY))
                if all(term.axes["task"] == SRAVEN for term in contrast.terms)
            ),
        ),
        {name: {"row": row, "task": SRAVEN} for name, row in _PARTS.items()},
        "accuracy",
    ),
    Headline(
        "SRAVEN: does a single head hurt?",
        "heads",
        HEADS_EXPERIMENT.claims[0],
        {
            f"{name}, {heads} head{'s' * (heads > 1)}": {"kind": kind, "heads": heads}
            for kind, name in zip(THREE, SHORT.values(), strict=True)
            for heads in (1, 16)
        },
        "accuracy",
    ),
    Headline(
        "SRAVEN: do latent codes reveal the rule?",
        "codes-sraven",
        CODES_SRAVEN.claims[0],
        {
            name: {"kind": kind, "what": "decoding", "keys": "self", "layer": 3, "label": "all"}
            for kind, name in zip(THREE, SHORT.values(), strict=True)
        },
        "F1",
        measure=F1,
        control=CONTROL,
    ),
)
