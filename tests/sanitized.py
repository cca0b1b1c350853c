"""Random problems for libraries built with the address sanitizer; run by `make sanitize`.

It aborts the process at the first out-of-bounds access and prints the line of C++.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import shapes
import torch

from hyla import native, products

FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")


def main() -> None:
    native.FLAGS = tuple(x for x in native.FLAGS if x != "-O3") + FLAGS
    with tempfile.TemporaryDirectory() as folder:
        native.cache_folder = lambda: Path(folder)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            _attention(seed=threads)
            _products()
    sys.stdout.write("no access out of bounds\n")


def _attention(seed: int) -> None:
    assert native.load("attention") is not None
    for case in shapes.cases(60, seed, limit=2**14, alike=1):
        if case.form.value_network != "deep" or case.value_size <= 16:
            for dtype in shapes.TOLERANCES:
                failures = shapes.failures(replace(case, dtype=dtype), "cpu", "cpu")
                assert not failures or dtype != case.dtype, failures


def _products() -> None:
    assert native.load("products") is not None
    for rows, inputs, outputs in (
        (1, 1, 1),
        (7, 13, 5),
        (131, 67, 129),
        (300, 33, 64),
        (9, 300, 301),
    ):
        x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        bias = torch.randn(outputs)
        y = products.operator(x, weight, bias, 0)
        expected = torch.nn.functional.linear(x, weight, bias)
        torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3)
        for options in range(4):  # bf16, GELU
            y = products.operator(x, weight, bias, options)
            products.linear_backward(y, x, weight, options, True, True)
        row = [torch.rand(rows) for _ in range(5)]
        rates = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "rate": 1e-3, "shrink": 0.9}
        products.adamw_(*row, **rates, root=1.0)


if __name__ == "__main__":
    main()
