"""Keras 3 on the torch backend: `keras:NAME` of keras.applications, `keras:model.keras`, `keras:model.h5`.

`KerasModule` wraps a Keras model as a torch module, which is all that the rest of the library sees. A final softmax or
sigmoid is removed: this library works with logits. Images are channels-last.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from peppermill.plumbing.nested import copied
from peppermill.plumbing.optional import importing
from peppermill.sources.pictures import resized_by_the_paper
from peppermill.sources.source import (
    Source,
    one_clear_line,
    refuse_unknown,
    split_query,
    weights_and_classes,
    whole_number,
)

FILES = (".keras", ".h5", ".hdf5")


def source(text: str, pretrained: bool = True) -> Source:
    """The network of `NAME`, with its ImageNet weights, or of a file.

    `?pretrained=false&classes=10&size=64` is for weights of your own; `size` is the images' height and width.
    """
    keras = library()
    name, options = split_query(text, "keras", ("pretrained", "classes", "size"))
    if name.endswith(FILES):
        if not Path(name).is_file():
            raise ValueError(f"there is no file {name}: `keras:` takes the path of what `model.save` wrote.")
        with one_clear_line(f"keras:{name}", "expected a whole model of Keras' own layers, as `model.save` writes it"):
            saved = without_activation(keras, keras.saving.load_model(name, compile=False))
        return Source(saved.eval(), channels_last=True)
    known = {key: value for key, value in vars(keras.applications).items() if key[0].isupper()}
    refuse_unknown("keras", name, known)
    (pretrained, sizes), side = weights_and_classes(options, pretrained, "classes"), whole_number(options, "size", 0)
    shape: dict[str, Any] = {"input_shape": (side, side, 3)} if side else {}
    with one_clear_line(f"keras:{name}"):
        weights = "imagenet" if pretrained else None
        model = known[name](weights=weights, classifier_activation=None, **shape, **sizes).eval()
    scale, size = sys.modules[known[name].__module__].preprocess_input, model.input_shape[1]

    def prepare(image: Any) -> Tensor:
        """[height, width, 3]: the paper's bicubic resize (to 256 for 224 pixels) and crop, then Keras' own scaling."""
        pixels = resized_by_the_paper(image.convert("RGB"), 256 if size == 224 else size, size)
        return torch.as_tensor(np.ascontiguousarray(scale(np.array(pixels, dtype=np.float32))))

    return Source(model, prepare, channels_last=True)


def without_activation(keras: Any, model: Any) -> Any:
    """The same network without a last softmax or sigmoid."""
    ends = (keras.activations.softmax, keras.activations.sigmoid)
    last = model.outputs[0]._keras_history.operation if getattr(model, "outputs", None) else None
    if isinstance(last, keras.layers.Softmax) or (
        isinstance(last, keras.layers.Activation) and last.activation in ends
    ):
        return keras.Model(model.inputs, last.input)
    if last is not None and getattr(last, "activation", None) in ends:
        last.activation = keras.activations.linear
    return model


def library() -> Any:
    """Keras on the torch backend: Keras reads the environment once, when it is imported."""
    loaded = sys.modules.get("keras")
    backend = loaded.backend.backend() if loaded else os.environ.setdefault("KERAS_BACKEND", "torch")
    if backend != "torch":
        raise ValueError(
            f"Keras is on the {backend} backend, and must be on torch's: set KERAS_BACKEND=torch in the environment."
        )
    with importing("Keras models need Keras 3", "keras", "keras"):
        import keras
    return keras


def adapt(model: nn.Module) -> nn.Module:
    """A Keras model as a `KerasModule`; a module of torch with Keras models inside as a copy that has their adapters.

    The copy shares every tensor with the module.
    """
    layer = library().Layer
    if isinstance(model, layer):
        return KerasModule(model)
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    inside = [part for part in model.modules() if isinstance(part, layer)]
    nested = {id(part) for top in inside for part in list(top.modules())[1:]}
    return deepcopy(model, shared | {id(top): KerasModule(top) for top in inside if id(top) not in nested})


class Slots(nn.Module):
    """The parameters and buffers of one module under their own names, each parameter with the type of its layer."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, type | None] = {}
        self._saved_names: list[str] = []

    def parameter_kind(self, name: str) -> type | None:
        """The type of the layer that computes with a parameter; None for state that no optimizer changes."""
        return self._kinds[name]

    def fill(self, module: nn.Module, kinds: dict[int, type | None], seeds: set[int]) -> None:
        """Take over the module's own tensors, in the order of `kinds`; save them in the order of the module."""
        place = {key: k for k, key in enumerate(kinds)}
        own = nn.Module.named_parameters(module, recurse=False, remove_duplicate=False)  # Keras' own adds some
        found = {name: value for name, value in own if id(value) not in seeds}
        for name in sorted(found, key=lambda name: place.get(id(found[name]), len(place))):
            self._kinds[name] = kinds.get(id(found[name]), type(module))
            self.register_parameter(name, found[name])
        saved = module.state_dict()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            self.register_buffer(name, buffer, persistent=name in saved)
        self._saved_names = [name for name in saved if name in found or name in self._buffers]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """In the module's own order: an ensemble in a file knows its network by the order of the names, too."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self._saved_names:
            destination[prefix + name] = destination.pop(prefix + name)


class KerasModule(Slots):
    """A Keras model as a module of torch: its parameters have slots here, under the names that torch has for them.

    Keras computes with Variables of its own, which `torch.func.functional_call` does not reach. The forward pass gives
    every Variable the value in its slot, within a StatelessScope, so that the Keras model never changes. Copies share
    the Keras model and have slots of their own. Parameters come in the order of the layers. The states of random
    generators have no slot: Keras seeds every dropout layer afresh.
    """

    _caller: _Caller

    def __init__(self, model: Any) -> None:
        super().__init__()
        keras = library()
        layers = list({id(layer): layer for layer in _descend(model)}.values())
        kinds: dict[int, type | None] = {}
        variables: dict[int, Any] = {}
        with keras.device(next((str(value.device) for value in model.parameters()), "cpu")):
            seeds = {id(generator.state.value) for layer in layers for generator in layer._seed_generators}
            for layer in layers:
                for variable in (*layer._trainable_variables, *layer._non_trainable_variables):
                    variables[id(variable.value)] = variable
                kinds |= {id(variable.value): type(layer) for variable in layer._trainable_variables}
                kinds |= {id(variable.value): None for variable in layer._non_trainable_variables}
        if not variables:
            raise ValueError(f"this {type(model).__name__} of Keras has no weights yet: call it once on a batch.")
        for path, module in model.named_modules(remove_duplicate=False):
            slots, (parent, _, name) = Slots() if path else self, path.rpartition(".")
            if path:
                self.get_submodule(parent).add_module(name, slots)
            slots.fill(module, kinds, seeds)
        wrappers = [layer for layer in layers if isinstance(layer, keras.layers.TorchModuleWrapper)]
        self.__dict__["_caller"] = _Caller(model, [wrapper.module for wrapper in wrappers], variables, self)
        self.eval()  # a Keras model is in training mode only if a call says so

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the Keras model gives with the values in the slots, on their device.

        It takes several inputs as one argument, a list, or a dict by name.
        """
        keras, caller = library(), self._caller
        if getattr(caller.model, "inputs", None) and len(args) != 1:
            args, kwargs = ((list(args),), kwargs) if args else ((kwargs,), {})
        if caller.model._call_has_training_arg:  # Keras would switch a module of torch inside to training mode
            kwargs = {"training": False, **kwargs}
        values = {**dict(self.named_parameters(remove_duplicate=False)), **dict(self.named_buffers())}
        mapping = [(variable, values[name]) for name, variable in caller.variables.items()]
        inside = {id(tensor): values[name] for name, tensor in caller.inside.items()}
        with (
            keras.device(str(next(iter(values.values())).device)),
            keras.StatelessScope(state_mapping=mapping),
            Replacement(inside) if inside else nullcontext(),
        ):
            return caller.model(*args, **kwargs)


class Replacement(TorchFunctionMode):
    """Computes with other tensors in place of some, by their ids: so the modules of torch in a Keras model stay as
    they are, also while a member runs.
    """

    def __init__(self, tensors: dict[int, Tensor]) -> None:
        super().__init__()
        self.tensors = tensors

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = copied((args, kwargs or {}), lambda tensor: self.tensors.get(id(tensor), tensor))
        return function(*args, **kwargs)


class _Caller:
    """The Keras model, the same for all copies, and its Variables and the tensors of torch in it by their slots."""

    def __init__(self, model: Any, modules: list[nn.Module], variables: dict[int, Any], slots: Slots) -> None:
        self.model = model
        names = {id(value): name for name, value in (*slots.named_parameters(), *slots.named_buffers())}
        self.variables = {names[key]: variable for key, variable in variables.items() if key in names}
        tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        self.inside = {names[id(tensor)]: tensor for tensor in tensors if id(tensor) in names}

    def __deepcopy__(self, memo: Any) -> _Caller:
        return self


def _descend(layer: Any) -> Iterator[Any]:
    """Parents before children; Keras keeps most layers in lists of its own, which torch does not see."""
    yield layer
    for part in layer._layers:
        yield from _descend(part)
