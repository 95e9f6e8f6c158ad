"""CUDA graphs with the members on parallel streams, for small batches: the GPU is full and nothing is launched twice.

A graph is captured for each shape of inputs and belongs to one state of the network and one sigma. Use one
ensemble from one CUDA stream at a time.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from peppermill.engines import Engine, Group, Members, Plan
from peppermill.engines.inference_form import agree, different
from peppermill.engines.member_weights import MemberWeights

MAX_GRAPHS = 8  # shapes of inputs whose graphs are kept


def graphs(weights: MemberWeights, members: Members, x: Tensor) -> Plan:
    """All members as one CUDA graph if the network can be captured, the loop otherwise."""
    if not suits_graphs(weights, members):
        return "loop, because the weights change from pass to pass or do not fit", None
    graph = graph_of(weights, members, x)
    return (f"loop, because {graph}", None) if isinstance(graph, str) else ("graphs", graph)


def suits_graphs(weights: MemberWeights, members: Members) -> bool:
    """Whether the weights stay where a graph reads them."""
    return members.keep and members.sigma != 0 and weights.fits(members.count)


class Captured:
    """One graph of all members: the input is copied to where it reads, outputs are copied from where it writes."""

    @torch.no_grad()
    def __init__(self, weights: MemberWeights, members: Members, x: Tensor) -> None:
        self.lock = threading.Lock()
        with torch.inference_mode(False):  # tensors of inference mode cannot be written to outside of it
            self.input = x.clone()
            self.weights = [weights.member(members, k) for k in range(members.count)]
            streams = [torch.cuda.Stream() for _ in self.weights]  # type: ignore[no-untyped-call]

            def run() -> list[Tensor]:
                """Members on parallel streams, which begin and end with the current one."""
                main, outputs = torch.cuda.current_stream(), []
                for stream in streams:
                    stream.wait_stream(main)
                for stream, params in zip(streams, self.weights, strict=True):
                    with torch.cuda.stream(stream):
                        outputs.append(weights.form(params, (self.input,), {}))
                for stream in streams:
                    main.wait_stream(stream)
                return outputs

            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                run()  # lets cuDNN and cuBLAS set up what a capture must not
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.outputs = torch.stack(run())

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        with self.lock:
            self.input.copy_(x)
            self.graph.replay()
            return self.outputs.clone()


def graph_of(weights: MemberWeights, members: Members, x: Tensor) -> Captured | str:
    """The graph for inputs of this shape, or the reason why there is none."""
    key = _key(members, x)
    with weights.lock:
        if key not in weights.prepared:
            graphs = [known for known in weights.prepared if known[0] == "graph"]
            for old in graphs[: max(0, len(graphs) + 1 - MAX_GRAPHS)]:
                del weights.prepared[old]
            try:
                weights.prepared[key] = captured = Captured(weights, members, x)
                other = different(x)
                for outputs, params in zip(captured(other), captured.weights, strict=True):
                    if not agree(outputs, weights.form(params, (other,), {})):
                        raise RuntimeError("its graph gives other outputs")
            except RuntimeError as error:
                reason = str(error).partition("\n")[0][:120]
                weights.prepared[key] = f"the network cannot be captured ({type(error).__name__}: {reason})"
        found: Captured | str = weights.prepared[key]
        return found


def known_graph_group(engine: Engine, members: Members, args: Any, kwargs: Any) -> Group | None:
    """A group that replays a known graph first and looks at the network while the GPU works."""
    latest = engine.latest

    def graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if latest is None or kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            return None
        found = latest.prepared.get(_key(members, args[0]))
        return found if isinstance(found, Captured) else None

    def outputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        known = graph(args, kwargs)
        found: Tensor | None = known and known(args[0])
        if found is not None and latest and latest.is_current(members):
            engine.report = "graphs"
            return found
        return torch.cat([group(args, kwargs) for group in engine.planned_groups(members, args, kwargs)])

    return outputs if members.keep and graph(args, kwargs) else None


def _key(members: Members, x: Tensor) -> tuple[Any, ...]:
    """What a graph is captured for."""
    return ("graph", members.sigma, x.shape, x.stride(), x.dtype)
