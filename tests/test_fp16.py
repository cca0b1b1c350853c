"""Training in fp16: more precise than bf16, with an automatic loss scale for each member."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import ALL_KINDS, tiny_run

from hyla.train import RunConfig, population, train
from hyla.train.population import Population


def trained(config: RunConfig, steps: int) -> Population:
    members = range(len(config.members))
    found = Population(config, members, torch.device("cpu"), compiled=False)
    for _ in range(steps):
        found.advance()
    return found


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_fp16_rounds_less_than_bf16(kind: str) -> None:
    config = tiny_run("sraven", kind=kind)
    exact = trained(replace(config, precision="fp64"), 1).moments.first
    fp16, bf16 = (
        (trained(replace(config, precision=p), 1).moments.first - exact).norm()
        for p in ("fp16", "bf16")
    )
    assert fp16 < bf16 / 2  # fp16 has three more bits, but either may flip a ReLU


def test_an_infinite_gradient_in_fp16_is_a_step_less_and_half_the_scale() -> None:
    config = tiny_run("sraven", precision="fp16")
    found = trained(config, 3)
    assert found.scale.tolist() == [1024.0] * 3  # not even the embedding overflows
    before = {name: tensor.clone() for name, tensor in found.state().items()}
    found.scale[1] = 2.0**40
    found.advance()
    assert found.scale.tolist() == [1024.0, 2.0**39, 1024.0]
    assert found.active.all()
    assert found.diverged_at.eq(-1).all()
    for name in ("first_moment", "second_moment", "parameters.norm.bias"):
        changed = found.state()[name].ne(before[name]).any(dim=1)
        assert changed.tolist() == [True, False, True]
    assert found.loss_sum.gt(before["loss_sum"]).all()  # the loss itself is known
    other = trained(config, 0)
    other.load(found.state())
    for _ in range(25):
        found.advance()
        other.advance()
    assert found.state()["first_moment"][1].ne(before["first_moment"][1]).any()
    assert other.parameters.equal(found.parameters)
    assert other.scale.equal(found.scale)


def test_the_scale_of_fp16_grows_again() -> None:
    found = trained(tiny_run("sraven", precision="fp16"), 0)
    found.scale.fill_(256.0)
    found.scale[2] = 1024.0
    found.step.fill_(998)
    found.advance()
    assert found.scale.tolist() == [256.0, 256.0, 1024.0]
    found.advance()
    assert found.scale.tolist() == [512.0, 512.0, 1024.0]


def test_a_loss_that_is_not_a_number_is_the_end_in_fp16_too() -> None:
    found = trained(tiny_run("sraven", precision="fp16"), 2)
    found.parameters[1] = torch.nan
    found.advance()
    assert found.active.tolist() == [True, False, True]
    assert found.diverged_at.tolist() == [-1, 2, -1]
    found.step.fill_(999)
    found.advance()  # its scale may grow, but it stays frozen
    assert found.active.tolist() == [True, False, True]
    assert found.take_log()[:, 0].isfinite().all()


def test_a_gradient_that_no_scale_helps_is_the_end() -> None:
    found = trained(tiny_run("sraven", precision="fp16"), 2)
    found.scale[1] = 4.0
    norms = found.gradient_norm.clone()
    # The loss is finite, and so is the scale: only the gradient is not.
    found.model.output.weight.register_hook(lambda gradient: gradient * torch.inf)
    for scale in (2.0, 1.0):
        found.advance()
        assert found.scale[1] == scale
        assert found.active.all()
        assert found.gradient_norm.equal(norms)  # of the last step that was taken
    found.advance()
    assert found.active.tolist() == [True, False, True]


def test_small_gradients_need_the_scale() -> None:
    config = tiny_run("sraven", kind="softmax")

    def first_gradients(precision: str, scale: float) -> torch.Tensor:
        found = trained(replace(config, precision=precision), 0)
        with torch.no_grad():
            found.model.output.weight.mul_(1e-4)  # shrinks the gradients of all earlier layers
        found.scale.fill_(scale)
        found.advance()
        named = found.model.named_parameters()
        before = sum(p[0].numel() for name, p in named if not name.startswith("output."))
        return found.moments.first[:, :before]

    exact = first_gradients("fp64", 1.0)
    scaled, plain = ((first_gradients("fp16", s) - exact).norm() for s in (1024.0, 1.0))
    assert scaled < plain / 4


def test_evaluation_does_not_overflow() -> None:
    config = tiny_run("sraven", kind="linear", precision="fp16")
    found = trained(config, 0)
    with torch.no_grad():  # finite in fp32, infinite in fp16
        for block in found.model.blocks:
            block.attention.value.weight.mul_(3e5)
    assert found.evaluate("held_out", 23).isfinite().all()
    found.advance()
    assert not found.active.any()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_other_precisions_have_no_scale(precision: str, tmp_path: Path) -> None:
    train(tiny_run("sraven", precision=precision), tmp_path, device="cpu", compiled=False)
    assert "scale" not in (tmp_path / "metrics.jsonl").read_text()
    found = trained(tiny_run("sraven", precision=precision), 1)
    assert "scale" not in found.state()
    assert found.scale.eq(1).all()
    with torch.autocast("cpu", torch.bfloat16):  # an outer autocast has no effect
        other = trained(tiny_run("sraven", precision=precision), 1)
    assert other.parameters.equal(found.parameters)


def test_fp16_goes_on_with_the_scales_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"device": "cpu", "compiled": False}
    # Members start with scales that are too large, and settle at different ones.
    monkeypatch.setattr(population, "LARGEST_SCALE", 2.0**24)
    config = tiny_run("sraven", precision="fp16", evaluate_every=9)
    train(config, tmp_path / "whole", **options)
    for stop in (4, 17, None):
        train(config, tmp_path / "run", stop_at=stop, **options)
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "run")]
    assert metrics[0] == metrics[1]
    lines = [json.loads(line) for line in metrics[0].splitlines()]
    scales = [line["scale"] for line in lines if "scale" in line]
    assert len(scales) == 3 * 6
    assert max(scales) < 2.0**24
    assert min(scales) > 1
