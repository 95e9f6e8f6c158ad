"""What is called: the network as a function of its weights, with batch norms folded and images channels last.

`torch.fx` records the network once. Its weights become arguments, each batch norm is folded into the layer before or
after it, and images and kernels are laid out channels last. `fold` turns a member's parameters into the weights of that
function, once per member. It serves every engine and every precision.

A network that torch.fx cannot trace whole (it branches on values, takes several inputs, has hooks) is called as it is,
and so is every network whose traced form gives other outputs on inputs and weights that it was not traced with.
"""

from __future__ import annotations

import dis
import gc
import operator
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from peppermill.engines import PRECISIONS, autocast
from peppermill.engines.network_shell import MODULE_NAMES, Shells, attributes_of, same_objects, shell_of
from peppermill.plumbing.nested import output_tensor, same_tensor
from peppermill.plumbing.networks import device_of
from peppermill.plumbing.warnings import warn_user
from peppermill.types import Params

CONVOLUTIONS: tuple[Any, ...] = (F.conv1d, F.conv2d, F.conv3d)
PRODUCTS: tuple[Any, ...] = (*CONVOLUTIONS, F.linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
RELUS: tuple[Any, ...] = (F.relu, torch.relu, torch.relu_, "relu", "relu_")
NORM_ARGUMENTS = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
IDENTITIES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Identity)
CHECKS: tuple[Any, ...] = (torch._assert, getattr, operator.eq, operator.ne, operator.le, operator.ge)
CONSTANT_TYPES = (
    int,
    float,
    str,
    bool,
    type(None),
    torch.Size,
    type,
    FunctionType,
    property,
    staticmethod,
    classmethod,
)
#: Libraries whose functions depend on their arguments alone.
PURE = {*("torch", "builtins", "math", "operator", "functools", "itertools", "collections", "typing", "types", "abc")}
PURE |= {
    *("contextlib", "copy", "enum", "inspect", "dataclasses", "warnings", "logging", "weakref", "re", "peppermill")
}
METADATA = ("__get__", "__hash__", "size", "dim", "numel", "stride", "is_floating_point", "is_complex", "__len__")
CHECKED_ITEMS = 4  # of a batch, on which the traced network is compared with the network itself

#: A node of a graph; torch types what a node holds as a union of twenty types.
Node: TypeAlias = Any

#: How far the two may differ, relative to the largest output: rounding in another order, on a GPU that of TF32.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}
CUDA_TOLERANCE = 2e-2


@dataclass(frozen=True)
class Norm:
    """A batch norm by the names of its arrays: x -> scale * x + shift."""

    mean: str
    variance: str
    weight: str | None
    bias: str | None
    epsilon: float

    def names(self) -> set[str]:
        return {name for name in (self.mean, self.variance, self.weight, self.bias) if name}

    def scale_and_shift(self, state: Params) -> tuple[Tensor, Tensor]:
        scale = (_wide(state[self.variance]) + self.epsilon).rsqrt()
        scale = scale * state[self.weight] if self.weight else scale
        shift = -state[self.mean] * scale
        return scale, shift + state[self.bias] if self.bias else shift


@dataclass(frozen=True)
class Layer:
    """A convolution or dense layer, with the norms before and after it folded in; linear in each of its arrays."""

    weight: str
    bias: str | None
    before: Norm | None = None
    after: Norm | None = None

    def names(self) -> set[str]:
        norms = [norm.names() for norm in (self.before, self.after) if norm]
        return {self.weight, *([self.bias] if self.bias else []), *set().union(*norms)}

    def tensors(self, state: Params) -> list[Tensor | None]:
        weight, bias = state[self.weight], state[self.bias] if self.bias else None
        if not self.before and not self.after:
            return [weight, bias]
        kind, weight = weight.dtype, _wide(weight)
        shift: Any = 0.0 if bias is None else _wide(bias)
        if self.before:
            scale, added = (value.view(-1, *[1] * (weight.ndim - 2)) for value in self.before.scale_and_shift(state))
            shift = shift + (weight * added).flatten(1).sum(dim=1)
            weight = weight * scale
        if self.after:
            scale, added = self.after.scale_and_shift(state)
            shift = shift * scale + added
            weight = weight * scale.view(-1, *[1] * (weight.ndim - 1))
        return [weight.to(kind), shift.to(kind)]


@dataclass(frozen=True)
class Value:
    """Any other parameter or buffer that the network reads."""

    name: str

    def names(self) -> set[str]:
        return {self.name}

    def tensors(self, state: Params) -> list[Tensor | None]:
        return [state[self.name]]


def _wide(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32))


class PlainForm:
    """The network as it is; the weights are a member's parameters by name."""

    is_traced = False

    def __init__(self, model: nn.Module, precision: str | None, reason: str) -> None:
        self.shells, self.reason = Shells(model), reason
        self.device, self.precision = device_of(model), precision
        self.attributes = attributes_of(model)

    def fold(self, params: Params) -> Params:
        return params

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return True

    def is_current(self) -> bool:
        """Whether every attribute of the network is still the same, but for those that it changes itself."""
        return bool(self.shells.changes_itself) or same_objects(self.attributes, attributes_of(self.shells.model))

    def __call__(self, weights: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        with autocast(self.device, self.precision):
            return output_tensor(self.shells(weights, args, kwargs)).clone()  # it may be a buffer of the network


class TracedForm:
    """The network as a graph of torch.fx; the weights are the graph's arguments before its input."""

    is_traced, reason = True, ""  # the reason why an engine runs it in the loop

    def __init__(self, plain: PlainForm, selected: Sequence[str], channels_last: bool) -> None:
        model, precision = plain.shells.model, plain.precision
        self.device, self.precision, self.channels_last = plain.device, precision, channels_last
        self.state = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}
        self.plain, self.selected = plain, selected
        self.agreed: dict[Any, bool] = {}  # whether the network gives the same outputs, by the kind of inputs
        self.writes = False  # whether the network writes to its input
        root = shell_of(model)
        recorder = _Recorder(root)
        self.graph = recorder.record()
        of_modules = ((vars(model.get_submodule(path)), name, value) for path, name, value in recorder.reads)
        self.reads: list[tuple[Mapping[str, Any], str, Any]] = [*of_modules, *recorder.globals.values()]
        self.class_reads = list(recorder.class_reads.values())
        self.modules = list(model.modules())
        first: dict[int, str] = {}  # the network's own name of each array, by every path that the graph may read
        arrays = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        names = {path: first.setdefault(id(value), path) for path, value in arrays}
        self.parts, arguments = _arguments(self.graph, root, names, self.state)
        if self.device.type == "cuda" and precision is None and not torch.is_autocast_enabled("cuda"):
            _fuse_relu(self.graph, root)
        self.varies = [bool(part.names() & set(selected)) for part in self.parts]
        for part, nodes in zip(self.varies, arguments, strict=True):
            for node in nodes:
                node.meta["varies"] = part
        self.function = fx.GraphModule(root, self.graph)
        self.run = self.function.forward  # without the checks for hooks of a call of the module
        self.fixed = [
            [] if varies else self._laid_out(part) for part, varies in zip(self.parts, self.varies, strict=True)
        ]

    def fold(self, params: Params) -> list[Tensor | None]:
        """The weights of the graph for these parameters; what they do not touch is shared by all members."""
        self_and_params = {**self.state, **params}
        weights: list[Tensor | None] = []
        for part, varies, fixed in zip(self.parts, self.varies, self.fixed, strict=True):
            weights += self._laid_out(part, self_and_params) if varies else fixed
        return weights

    def columns(self) -> tuple[list[bool], list[bool]]:
        """Of each weight of the graph: whether it is the kernel of a dense layer, and whether it varies."""
        is_kernel, varies = list[bool](), list[bool]()
        for part, part_varies in zip(self.parts, self.varies, strict=True):
            is_layer = isinstance(part, Layer)
            is_kernel += [is_layer, False] if is_layer else [False]
            varies += [part_varies] * (1 + is_layer)
        return is_kernel, varies

    def is_current(self) -> bool:
        """Whether every attribute and global that the trace read has its value, no module a hook."""
        if any(module._forward_hooks or module._forward_pre_hooks for module in self.modules):
            return False
        same = all(space.get(name) == value for space, name, value in self.reads)
        return same and all(getattr(kind, name, None) == value for kind, name, value in self.class_reads)

    def __call__(self, weights: list[Tensor | None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        with autocast(self.device, self.precision):
            return output_tensor(self.run(*weights, self.laid_out(args[0])))

    def laid_out(self, x: Tensor) -> Tensor:
        x = x.clone() if self.writes else x
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.ndim == 4 else x

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these are arguments like those for which the network was traced, and it gives the right outputs.

        The first inputs of each shape decide: they, and other inputs with other weights, go through both forms.
        """
        if _unusual_arguments(args, kwargs):
            return False
        if (kind := kind_of(args[0])) not in self.agreed:
            x, moved = args[0][:CHECKED_ITEMS], {name: moved_weight(self.state[name]) for name in self.selected}
            self.agreed[kind] = self._agrees(x, {}) and self._agrees(different(x), moved)
        return self.agreed[kind]

    def _agrees(self, x: Tensor, params: Params) -> bool:
        try:
            given = x.clone()
            found = self(self.fold(params), (given,), {})
            self.writes |= not same_tensor(x, given)
            return agree(found, self.plain(params, (x,), {}))
        except Exception:  # of the network itself: the plain form, which runs next, raises it again
            return False

    def _laid_out(self, part: Layer | Value, state: Params | None = None) -> list[Tensor | None]:
        tensors = part.tensors(state or self.state)
        if self.precision and isinstance(part, Layer):
            tensors = [value if value is None else value.to(PRECISIONS[self.precision]) for value in tensors]
        if self.channels_last:
            layout = torch.channels_last
            return [
                value.contiguous(memory_format=layout) if value is not None and value.ndim == 4 else value
                for value in tensors
            ]
        return tensors


Form: TypeAlias = PlainForm | TracedForm


def forms_of(
    model: nn.Module, selected: Sequence[str], precision: str | None, args: Any, kwargs: Any
) -> tuple[PlainForm, Form]:
    """The plain network, and the traced one if it gives the same outputs, on a second, different batch too."""
    plain = PlainForm(model, precision, _obstacle(model, args, kwargs))
    if _is_random(plain, args, kwargs):
        plain.reason = "its outputs are random"
        warn_user(
            f"this {type(model).__name__} gives other outputs when it is called again on the same inputs, so every "
            "number includes chance. Did its code leave out `training=self.training` in `F.dropout`?"
        )
    if plain.reason:
        return plain, plain
    for channels_last in (True, False) if args[0].ndim == 4 else (False,):
        try:
            form = TracedForm(plain, selected, channels_last)
            if form.takes(args, kwargs):
                return plain, form
            plain.reason = "the traced network gives other outputs than the network"
        except Exception as error:
            reason = str(error).partition("\n")[0][:120]
            plain.reason = f"torch.fx cannot trace it ({type(error).__name__}: {reason})"
    return plain, plain


class _Recorder(fx.Tracer):
    """Records what a network does with a stand-in for its input, and everything else that its code reads.

    `fx.Tracer.trace` patches `nn.Module` for every thread; this patches the classes of our own shell alone. Code that
    depends on anything but the input, its tensors, and attributes and globals that can be compared later is refused.
    """

    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.root, self.graph = root, fx.Graph()
        self.tensor_attrs = {value: path for path, value in root.named_buffers()}
        self.paths = {module: path for path, module in root.named_modules()}
        self.reads: list[tuple[str, str, Any]] = []  # path of the module, name of the attribute, value
        self.class_reads: dict[Any, tuple[type, str, Any]] = {}
        self.globals: dict[Any, tuple[Mapping[str, Any], str, Any]] = {}
        self.codes: dict[Any, dict[str, Any]] = {}  # the functions that ran, with their globals
        self.others = {getattr(function, "__code__", None) for function in gc.callbacks}  # may run at any time

    def record(self) -> fx.Graph:
        """In a thread of its own, which alone has the profile function and the mode of torch that watch the code."""
        with ThreadPoolExecutor(1) as own:
            own.submit(self._record).result()
        for code, namespace in self.codes.items():
            steps = list(dis.get_instructions(code))
            if {*code.co_freevars} - {"__class__"} or any(step.opname == "IMPORT_NAME" for step in steps):
                raise TypeError(f"`{code.co_name}` reads what an outer function or an import may change")
            names = {step.argval for step in steps if step.opname == "LOAD_GLOBAL"}
            attributes = {step.argval for step in steps if step.opname in ("LOAD_ATTR", "LOAD_METHOD")}
            self._note_globals(namespace, names, attributes, set())
        return self.graph

    def _record(self) -> None:
        kinds = {module: type(module) for module in self.paths}
        watched = {kind: self._watched(kind) for kind in set(kinds.values())}
        x = self.create_proxy("placeholder", "x", (), {})
        for module, kind in kinds.items():
            object.__setattr__(module, "__class__", watched[kind])
        sys.setprofile(self._note_call)
        try:
            with _NoValues():
                outputs = self.root(x)
        finally:
            sys.setprofile(None)
            for module, kind in kinds.items():
                object.__setattr__(module, "__class__", kind)
        self.graph.output(self.create_arg(outputs))

    def _note_call(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code not in self.others and not _is_pure(frame.f_globals.get("__name__")):
            self.codes[frame.f_code] = frame.f_globals

    def _note_globals(self, space: Mapping[str, Any], names: set[str], attributes: set[str], seen: set[int]) -> None:
        """Note the globals that a function reads, and what it reads of modules and classes among them."""
        for name in names & space.keys():
            self.globals[id(space), name] = space, name, (value := space[name])
            if isinstance(value, (ModuleType, type)):
                home = value.__name__ if isinstance(value, ModuleType) else value.__module__
                if not _is_pure(home) and id(value) not in seen:
                    self._note_globals(vars(value), attributes, attributes, seen | {id(value)})
            elif not _is_constant(value):
                raise TypeError(f"it reads the global `{name}`, a {type(value).__name__} that may change")

    def _watched(self, kind: type) -> type:
        recorder = self

        class Watched(kind):  # type: ignore[misc]
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                if recorder.is_recorded_whole(self, kind):
                    for name in vars(self).keys() - MODULE_NAMES:
                        getattr(self, name)  # notes its value
                    return recorder.create_proxy("call_module", recorder.paths[self], args, kwargs)
                return super().__call__(*args, **kwargs)

            def __getattribute__(self, name: str) -> Any:
                value = super().__getattribute__(name)
                if name in MODULE_NAMES or name.startswith("__"):
                    return value
                known = value
                if name in super().__getattribute__("__dict__"):
                    recorder.reads.append((recorder.paths[self], name, value))
                else:
                    known = getattr(kind, name)
                    recorder.class_reads[kind, name] = kind, name, known
                if not _is_constant(known):
                    raise TypeError(f"it reads `{name}`, a {type(value).__name__} that may change")
                return value

            def __setattr__(self, name: str, value: Any) -> None:
                raise TypeError(f"it writes to `{name}`")

        return Watched

    def is_recorded_whole(self, module: nn.Module, kind: type) -> bool:
        """Whether a module is one operation: batch norms, and modules of torch without parameters or buffers."""
        has_state = next(module.parameters(), next(module.buffers(), None)) is not None
        return kind in NORMS or (kind.__module__.startswith("torch.nn.") and not has_state)


class _NoValues(TorchFunctionMode):
    """Refuses what computes with the network's own tensors alone, so that no weight becomes a number of Python."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with_input = any(issubclass(kind, fx.Proxy) for kind in types)
        if not with_input and function.__name__ not in METADATA and any(isinstance(value, Tensor) for value in args):
            raise TypeError(f"it computes with its weights alone (`{function.__name__}`)")
        return function(*args, **(kwargs or {}))


def _is_constant(value: Any) -> bool:
    """Whether a value is code or never changes, so that it can be compared later."""
    if isinstance(value, BuiltinFunctionType):
        return _is_pure(value.__module__ or type(value.__self__).__module__)
    if type(value) is tuple:
        return all(map(_is_constant, value))
    harmless = type(value).__module__.partition(".")[0] in ("torch", "typing", "logging")
    return (harmless and not isinstance(value, (Tensor, nn.Module))) or isinstance(value, CONSTANT_TYPES)


def _is_pure(module: str | None) -> bool:
    return (module or "").partition(".")[0] in PURE


def _is_random(plain: PlainForm, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the network gives other outputs when it is called again."""
    try:
        if all(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
            args = tuple(value[:CHECKED_ITEMS] for value in args)
            kwargs = {name: value[:CHECKED_ITEMS] for name, value in kwargs.items()}
        return not agree(plain({}, args, kwargs), plain({}, args, kwargs))
    except Exception:  # a network for batches of one size only, or its own error, which its first pass raises again
        return False


def _obstacle(model: nn.Module, args: Any, kwargs: Any) -> str:
    """Why the network cannot be traced, if that is plain to see."""
    if _unusual_arguments(args, kwargs):
        return "its input is not one tensor of real numbers"
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return "it has hooks"
    return ""


def _unusual_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs) or len(args) != 1 or not isinstance(args[0], Tensor) or not args[0].is_floating_point()


def kind_of(x: Tensor) -> Any:
    """Inputs of one kind go through the same operations."""
    return x.shape[1:], x.dtype, len(x) > 1


def different(x: Tensor) -> Tensor:
    """Other inputs of the same shape: what was baked in from one batch shows on another."""
    return 1.25 * x.flip(0) + 0.1


def moved_weight(weight: Tensor) -> Tensor:
    """Other weights of the same size, in one piece of memory: what was baked in from the network's own shows."""
    wave = torch.arange(weight.numel(), dtype=torch.float32, device=weight.device).cos_().view_as(weight)
    size = float(weight.norm()) / weight.numel() ** 0.5 or 1.0
    return wave.mul_(0.05 * size).add_(weight).to(weight.dtype)


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether two forms of one network give the same outputs, up to rounding."""
    largest = expected.nan_to_num(0, 0, 0).abs().max().clamp(min=1e-30)
    tolerance = TOLERANCES.get(expected.dtype, 0.0)
    tolerance = max(tolerance, CUDA_TOLERANCE) if expected.is_cuda and expected.dtype != torch.float64 else tolerance
    if found.shape != expected.shape:
        return False
    close = ((found - expected).abs() <= tolerance * largest) | (found == expected) | (found.isnan() & expected.isnan())
    return bool(close.all())


def _arguments(
    graph: fx.Graph, root: nn.Module, names: dict[str, str], state: Params
) -> tuple[list[Layer | Value], list[list[Node]]]:
    """Make arguments of the weights in the graph and fold the norms; gives what each argument is made of."""
    for node in [node for node in graph.nodes if node.op == "call_module"]:
        module = root.get_submodule(node.target)
        if isinstance(module, IDENTITIES):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif type(module) in NORMS:
            _functional_norm(graph, node, module)
        elif type(module) in (nn.ReLU, nn.Flatten):  # functions take less time to call
            node.op, node.target = "call_function", torch.relu if type(module) is nn.ReLU else torch.flatten
            node.args += () if type(module) is nn.ReLU else (module.start_dim, module.end_dim)
    for node in reversed(list(graph.nodes)):  # checks of shapes, and what was computed for them alone
        if node.target in CHECKS and not node.users:
            graph.erase_node(node)
    named = {node: names[node.target] for node in graph.nodes if node.op == "get_attr"}  # KeyError: a constant
    layers = {
        node: Layer(named[node.args[1]], named[node.args[2]] if node.args[2] else None)
        for node in graph.nodes
        if node.target in PRODUCTS and len(node.args) >= 3 and node.args[1] in named and not node.kwargs
    }
    for node in [node for node in graph.nodes if node.target is F.batch_norm]:
        _fold_norm(graph, node, named, layers)
    parts: list[Layer | Value] = []
    arguments: list[list[Node]] = []
    first = next(iter(graph.nodes))
    with graph.inserting_before(first):
        for node, layer in layers.items():
            own = [graph.placeholder(f"{node.name}_weight"), graph.placeholder(f"{node.name}_bias")]
            own[0].meta["dtype"] = state[layer.weight].dtype
            node.args = (node.args[0], *own, *node.args[3:])
            parts.append(layer)
            arguments.append(own)
        for node, name in named.items():
            if node.users:
                own = [graph.placeholder(f"{node.name}_value")]
                node.replace_all_uses_with(own[0])
                parts.append(Value(name))
                arguments.append(own)
            graph.erase_node(node)
    return parts, arguments


def _functional_norm(graph: fx.Graph, node: Node, module: Any) -> None:
    """A batch-norm module as a call of `F.batch_norm` with its arrays."""
    if module.running_mean is None:
        raise TypeError("a batch norm without running statistics depends on the whole batch")
    with graph.inserting_before(node):
        arrays = [
            graph.get_attr(f"{node.target}.{name}") if getattr(module, name) is not None else None
            for name in ("running_mean", "running_var", "weight", "bias")
        ]
        call = graph.call_function(F.batch_norm, (node.args[0], *arrays, False, 0.0, module.eps))
    node.replace_all_uses_with(call)
    graph.erase_node(node)


def _fold_norm(graph: fx.Graph, node: Node, named: dict[Node, str], layers: dict[Node, Layer]) -> None:
    """Fold a norm into the layer that feeds it, or into the only layer that it feeds."""
    given = dict(zip(NORM_ARGUMENTS, node.args, strict=False)) | node.kwargs
    arrays = [given.get(name) for name in NORM_ARGUMENTS[1:5]]
    x: Any = given["input"]
    if given.get("training") or arrays[0] is None or any(array and array not in named for array in arrays):
        return
    norm = Norm(*(named[array] if array else None for array in arrays), given.get("eps", 1e-5))  # type: ignore
    following = next(iter(node.users))
    if x in layers and len(x.users) == 1 and not layers[x].after:
        layers[x] = replace(layers[x], after=norm)
    elif following in layers and len(node.users) == 1 and following.args[0] is node and _sees_no_border(following):
        layers[following] = replace(layers[following], before=norm)
    else:
        return
    node.replace_all_uses_with(x)
    graph.erase_node(node)


def _fuse_relu(graph: fx.Graph, root: nn.Module) -> None:
    """Let cuDNN add the bias, another tensor and the ReLU to a float32 convolution in one kernel; not in bfloat16,
    in which this reads memory that it must not (torch 2.11)."""
    for node in list(graph.nodes):
        is_module = node.op == "call_module" and isinstance(root.get_submodule(node.target), nn.ReLU)
        if not is_module and node.target not in RELUS:
            continue
        first = node.args[0]
        is_sum = first.target in (operator.add, operator.iadd) and len(first.users) == 1
        added: Node = first.args if is_sum else (first,)
        convs = [each for each in added if isinstance(each, fx.Node) and each.target is F.conv2d]
        once = [each for each in convs if len(each.users) == 1 and len(each.args) == 7]
        conv: Node = next((each for each in once if isinstance(each.args[4], tuple) and each.args[6] == 1), None)
        if conv is None or conv.args[1].meta["dtype"] != torch.float32:
            continue
        x, weight, bias, *places = conv.args
        with graph.inserting_before(node):
            if added == (first,):
                fused = graph.call_function(torch.cudnn_convolution_relu, (x, weight, bias, *places))
            else:
                other = added[1] if added[0] is conv else added[0]
                fused = graph.call_function(torch.cudnn_convolution_add_relu, (x, weight, other, 1.0, bias, *places))
        node.replace_all_uses_with(fused)
        for old in dict.fromkeys((node, first, conv)):
            graph.erase_node(old)


def _sees_no_border(node: Node) -> bool:
    """Whether a layer adds no zeros around its input and mixes all channels: only then a shift can pass through it."""
    if node.target is F.linear:
        return True
    _, _, _, _, padding, _, groups = node.args
    return groups == 1 and padding in (0, (0,), (0, 0), (0, 0, 0))
