"""Eq. 9 without randomness: m members with their weights in them, and their average, as one network to be traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from peppermill.data import output_tensor
from peppermill.export.example import Example
from peppermill.foreign import functional_call
from peppermill.likelihood import temper
from peppermill.types import Likelihood, Params


class DeployedEnsemble(nn.Module):
    """All members at once, each with its own selected weights; everything else is held once and shared.

    The noise is not drawn again at each call: it would cost more than the network itself. The user's network lends its
    code, not its tensors, and is no part of this one: what is traced holds no weight that no member uses.
    """

    def __init__(
        self, model: nn.Module, members: list[Params], likelihood: Likelihood, temperature: float, example: Example
    ) -> None:
        super().__init__()
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        shared = self._hold("shared", {name: value for name, value in state.items() if name not in members[0]})
        self._members = [{**shared, **self._hold(f"member{j}", params)} for j, params in enumerate(members)]
        self.code = (model,)  # in a tuple, where nn.Module does not look for parts
        self.likelihood, self.temperature = likelihood, temperature
        self.forward = self._called_like(example)
        self.eval()

    def average(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The averaged prediction, by name."""
        total = None
        for held in self._members:
            params = {name: getattr(self, attribute) for name, attribute in held.items()}
            outputs = output_tensor(functional_call(self.code[0], params, args, kwargs))
            total = self.likelihood.accumulate(total, self.likelihood.predict(outputs))
        assert total is not None
        averaged = self.likelihood.average(total, len(self._members))
        return named_outputs(self.likelihood, self.likelihood.outputs(temper(averaged, self.temperature)))

    def held_bytes(self) -> int:
        """What the file has to hold, about."""
        return sum(value.nbytes for value in self.buffers())

    def _hold(self, owner: str, params: Mapping[str, Tensor]) -> dict[str, str]:
        """Register tensors under names that a graph can have: the parameter's name -> the attribute's."""
        attributes = {name: f"{owner}_{k}_{name.replace('.', '_')}" for k, name in enumerate(params)}
        for name, value in params.items():
            self.register_buffer(attributes[name], value.detach())
        return attributes

    def _called_like(self, example: Example) -> Callable[..., dict[str, Tensor]]:
        """`forward` with the names of the network's own arguments, because they become those of the file's inputs."""

        def forward(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            return self.average(*args, **kwargs)

        forward.__signature__ = example.signature  # type: ignore[attr-defined]
        return forward


def named_outputs(likelihood: Likelihood, outputs: Tensor) -> dict[str, Tensor]:
    """What a file gives, from what the ensemble gives: probabilities first, and a form that does not underflow."""
    if likelihood.name == "gaussian":
        mean, log_variance = outputs.unbind(dim=-1)
        return {"mean": mean, "log_variance": log_variance}
    if likelihood.name == "bernoulli":
        return {"probabilities": outputs.sigmoid(), "logits": outputs}
    return {"probabilities": outputs.exp(), "log_probabilities": outputs}


def output_names(likelihood: Likelihood) -> list[str]:
    """The names of `named_outputs`, in order."""
    return list(named_outputs(likelihood, torch.zeros(1, 2)))
