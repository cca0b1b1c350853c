"""CUDA graphs of functions that change tensors in place."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all rehearsals and captures: cuBLAS keeps 32 MiB for every stream it has seen."""
    return torch.cuda.Stream(device)


class CapturedCall:
    """A function that changes tensors in place; on CUDA, once captured, a graph that repeats it."""

    def __init__(self, function: Callable[[], None], device: torch.device) -> None:
        self.function, self.device = function, device
        self.graph: torch.cuda.CUDAGraph | None = None

    def warm_up_kernels(self) -> None:
        """Runs the function, beside the default stream as a capture wants it."""
        if self.device.type != "cuda":
            self.function()
            return
        with torch.cuda.device(self.device):
            side = _side_stream(self.device)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self.function()
            torch.cuda.current_stream().wait_stream(side)

    def capture(self, pool: Any) -> Any:
        """Makes a graph of the function, in a pool of memory; returns the pool."""
        if self.device.type != "cuda":
            return None
        with torch.cuda.device(self.device):
            graph = torch.cuda.CUDAGraph()
            # By default all captures of a process are on a stream of the first one's device.
            with torch.cuda.graph(graph, pool=pool, stream=_side_stream(self.device)):
                self.function()
            self.graph = graph
            return graph.pool()

    def __call__(self) -> None:
        if self.graph is None:
            self.function()
        else:
            self.graph.replay()
