"""A user's own model: build a callable ``package.module:name``, and check it before round 1."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from task.errors import ConfigError
from task.models.adapt import Interface, Outputs, kind_of_outputs, main_of
from task.models.layer_split import linear_calls, no_last_linear
from task.models.layers import LONE_EXAMPLE
from task.models.pretrained import Pretrained
from task.numerics.tensors import copied
from task.references import is_model_folder, load_reference, model_folder, place

GIVEN = ("input_shape", "num_classes")
_WANTED = "a callable (input_shape, num_classes) or () that returns a torch.nn.Module"
ROUNDING = 1e-5  # tolerance of a sum of probabilities

Shape = tuple[int, ...]


def find_maker(reference: str) -> Callable[..., Any]:
    """Import what the run-config key "model" names.

    Raises:
        ConfigError: It cannot be imported, or cannot be called as a model's maker is.
    """
    if is_model_folder(reference):
        return Pretrained(model_folder("model", reference))
    made = load_reference("model", reference)
    if isinstance(made, nn.Module) or not callable(made):
        raise _refused(reference, _WANTED, f"{type(made).__name__}; give the class or a function")
    _arguments(reference, made, (), 0)
    return made  # type: ignore[no-any-return]


def build_brought(
    reference: str,
    shape: Shape,
    num_classes: int,
    *,
    text: bool = False,
    interface: Interface | None = None,
) -> nn.Module:
    """Return a new model of a user's callable; its first values come from torch's generator.

    `shape` is that of one example. PyTorch's own batch normalisation takes single examples as our layers do,
    see `task.models.layers.LONE_EXAMPLE`. Lazy layers take the shape of an example. `interface` says how the
    run calls it.

    Raises:
        ConfigError: The callable fails, or what it returns cannot be trained.
    """
    maker = find_maker(reference)
    try:
        model = _made(reference, maker, interface.shape(shape) if interface else shape, num_classes)
    except Exception as err:  # whatever the user's code raises
        raise _refused(reference, "a model", f"an error: {place(err)}") from err
    if not isinstance(model, nn.Module):
        raise _refused(reference, "a torch.nn.Module", f"{type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise _refused(
            reference, "a torch.nn.Module of Python code, which a run copies and inspects",
            "a TorchScript module; give the class that it was made of",
        )  # fmt: skip
    away = next((str(t.device) for t in model.state_dict().values() if _is_away(t)), None)
    if away:
        raise _refused(
            reference, 'a model on the CPU, which the run moves itself (run-config key "device")',
            f"one on {away}; leave out .to(...) and .cuda()",
        )  # fmt: skip
    if interface and interface.adapters:
        model = interface.adapters.add(model)
    for layer in model.modules():
        layer.__class__ = LONE_EXAMPLE.get(type(layer), type(layer))
    if interface:
        interface.attach(model)
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        made = examples(model, shape, 1, text=text, interface=interface)
        _run(reference, model.eval(), made, "an example")
        model.train()
    _check_tensors(reference, model)
    return model


def _made(reference: str, maker: Callable[..., Any], shape: Shape, num_classes: int) -> Any:
    """Call a maker. One with **options is given num_classes if it takes it, as torchvision's models do."""
    args, named = _arguments(reference, maker, shape, num_classes)
    if not args and not named:
        parameters = inspect.signature(maker).parameters.values()
        before = torch.get_rng_state()
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            try:
                return maker(num_classes=num_classes)
            except TypeError:
                torch.set_rng_state(before)
    return maker(*args, **named)


def _is_away(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def examples(
    model: nn.Module, shape: Shape, count: int, *, text: bool, interface: Interface | None = None
) -> torch.Tensor:
    """Return made-up examples [count, ...]: of a text zeros, int64; else -0.5 and 0.5 in turns.

    An interface with a form of its own makes them.
    """
    if interface and interface.form:
        return interface.examples(count, model)
    if text:
        return torch.zeros((count, *shape), dtype=torch.int64)
    # No zeros, since dropout does not change them; both signs, since ReLU does not change positive numbers.
    return (torch.arange(count * math.prod(shape)) % 2 - 0.5).view(count, *shape)


def _arguments(
    reference: str, maker: Callable[..., Any], shape: Shape, num_classes: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what to call a maker with: what it names, else both in order, else nothing."""
    values = dict(zip(GIVEN, (shape, num_classes), strict=True))
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError):  # no Python code
        return (shape, num_classes), {}
    open_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {p.name: values[p.name] for p in parameters if p.name in values}
    needed = [p for p in parameters if p.default is p.empty and p.kind not in open_kinds]
    if all(p.name in named for p in needed) and not any(p.kind is p.POSITIONAL_ONLY for p in needed):
        return (), named
    if not named and len(needed) == 2 and all(p.kind is not p.KEYWORD_ONLY for p in needed):
        return (shape, num_classes), {}
    got = ", ".join(map(str, parameters))
    raise _refused(reference, "arguments (input_shape, num_classes) or none", f"({got})")


def _check_tensors(reference: str, model: nn.Module) -> None:
    """Refuse a model whose tensors cannot be sent, averaged or trained."""
    names: dict[int, str] = {}
    for name, p in model.named_parameters():  # each once: layers may share a whole parameter
        where = p.untyped_storage().data_ptr() if p.numel() else id(p)
        if first := names.get(where):
            raise _refused(
                reference, "parameters with memory of their own",
                f"two, {first!r} and {name!r}, in one memory. Tie them by giving one parameter to both "
                "layers, as in self.head.weight = self.embedding.weight",
            )  # fmt: skip
        names[where] = name
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise _refused(reference, "tensors only in the state dict", f"{type(value).__name__} as {name!r}")
        if value.is_complex():
            raise _refused(reference, "real numbers", f"{str(value.dtype)[6:]} in {name!r}")


def check_brought(
    reference: str,
    build: Callable[[], nn.Module],
    shape: Shape,
    num_classes: int,
    *,
    text: bool = False,
    logits: bool = True,
    places: Shape = (),
    interface: Interface | None = None,
    own_loss: bool = False,
    needs_features: str = "",
    last_layers: Mapping[str, int] | None = None,
    rows: torch.Tensor | None = None,
    runs: bool = True,
) -> None:
    """Try a user's model on two examples, forwards and backwards, before round 1.

    Args:
        reference: Of the model.
        build: Makes it as the run does.
        shape: Of one example.
        num_classes: C; the model is to give [B, C], where each place has a target [B, C, *places].
        text: Whether examples are int64.
        logits: Whether the task is one of classes; what others need, `task.tasks.base.check_fits` says.
        places: Shape of an example's target; () = it is one class.
        interface: How the run calls the model.
        own_loss: Whether the loss is a user's, too, which may take other outputs than logits.
        needs_features: Title of the algorithm that needs a last linear layer; "" = it needs none.
        last_layers: By run-config key, how many last layers the run takes by their order of declaration.
        rows: Two of the run's examples. They are taken where they are whole numbers, as ids of words are,
            which made-up ones are not, and where they have a form.
        runs: Whether to run it; without, only its first values are looked at.

    Raises:
        ConfigError: It cannot be trained; names the reference, what was expected and got, and what to do.
    """
    model = build()
    first, again = (m.state_dict() for m in (model, build()))
    differ = [n for n, t in first.items() if n not in again or not _same(t, again[n])]
    del first, again  # the memory of a second model
    if differ:
        raise _refused(
            reference, "first values that follow from torch's generator (the run's seed) alone",
            f"others at a second call in {differ[0]!r}; draw them with torch",
        )  # fmt: skip
    if not runs:
        return
    formed = interface is not None and bool(interface.form)
    ids = rows is not None and len(rows) == 2 and (formed or bool((rows == rows.round()).all()))
    made = examples(model, shape, 2, text=text, interface=interface)
    x = rows if rows is not None and ids else made
    wanted = (num_classes if logits else 0, *places)
    with torch.random.fork_rng(devices=[]):
        _check_outputs(reference, model.eval(), x, wanted, own_loss)
        order = _order(model, x)
        if needs_features and output_layer(model, x) is None:
            raise _refused(
                reference, f"a model that ends with a linear layer, as {needs_features} needs one",
                "outputs that are not those of an nn.Linear",
            )  # fmt: skip
        for key, count in (last_layers or {}).items():
            _check_order(reference, model, order, key, count)
        _check_training(reference, copied(model).train(), x, (0,) if own_loss else wanted)


def _check_outputs(reference: str, model: nn.Module, x: torch.Tensor, wanted: Shape, own_loss: bool) -> None:
    """Refuse outputs that are no logits, by shape, dtype and values, for one example and for two.

    `wanted` is their shape for one example, the classes first. Without classes, the model only has to take
    them.
    """
    classes, *places = wanted
    for count in (1, 2):
        out = _run(reference, model, x[:count], f"{count} example{'s' if count > 1 else ''}")
        if not classes:
            continue
        want = [count, *wanted]
        out = _seen(out, wanted)
        if not isinstance(out, torch.Tensor):
            raise _refused(reference, f"outputs {want}, a tensor{_OR_NAMED}", _described(out))
        if list(out.shape) != want:
            raise _refused(
                reference, f"outputs {want} for inputs {list(x[:count].shape)} "
                f"({'examples, classes, places' if places else 'examples, classes'}; num-classes sets their "
                "number, such as a vocabulary of which the data have a part)", f"{list(out.shape)}",
            )  # fmt: skip
        if out.dtype != torch.float32:
            raise _refused(reference, "float32 outputs", str(out.dtype)[6:])
        again = _seen(_run(reference, model, x[:count], "the same examples twice"), wanted)
        if not _same(out.nan_to_num(), again.nan_to_num()):
            raise _refused(
                reference, "outputs in evaluation that follow from the inputs alone",
                "others at a second call; F.dropout needs training=self.training, and what a call leaves in "
                "the model must not change the next one",
            )  # fmt: skip
        if not own_loss and bool((out >= 0).all()) and bool(((out.sum(1) - 1).abs() < ROUNDING).all()):
            raise _refused(
                reference, "logits; the loss applies the softmax",
                'probabilities; leave out the softmax at the end, or bring a "loss" for them',
            )  # fmt: skip


_OR_NAMED = ', or a dict with "logits" or "out", or a tuple with such a tensor'


def _seen(out: Any, wanted: Shape) -> Any:
    """Return what metrics see of outputs, also of those that only the user's own loss takes."""
    return main_of(out, Outputs(wanted[0], len(wanted) == 2))


def _described(out: Any) -> str:
    return (
        f"{type(out).__name__} of {', '.join(map(str, out))}"
        if isinstance(out, Mapping)
        else type(out).__name__
    )


def _check_training(reference: str, model: nn.Module, x: torch.Tensor, wanted: Shape) -> None:
    """Refuse a model that gives some parameter no gradient, keeps unsaved state or cannot train on one.

    With classes its outputs must be those of evaluation; `wanted` is as in `_check_outputs`.
    """
    saved = model.state_dict().keys()
    hidden = {n: b.clone() for n, b in model.named_buffers() if n not in saved}
    out = _run(reference, model, x, "two training examples")
    want = [len(x), *wanted]
    both = (copied(model).eval(), copied(model)) if wanted[0] else ()
    kinds = [kind_of_outputs(m, x) for m in both] or ["", ""]
    alike = isinstance(out, torch.Tensor) and list(out.shape) == want and kinds[0] == kinds[1]
    if wanted[0] and not alike:
        got = str(list(out.shape)) if isinstance(out, torch.Tensor) else type(out).__name__
        got = kinds[1] if kinds[0] != kinds[1] else got
        raise _refused(reference, f"outputs {want}, {kinds[0]}, in training, too", got)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    outputs = [t.sum() for t in _tensors(out) if t.requires_grad]
    found: tuple[torch.Tensor | None, ...] = (None,) * len(trained)
    if outputs:
        found = torch.autograd.grad(outputs, list(trained.values()), allow_unused=True)
    without = [name for name, g in zip(trained, found, strict=True) if g is None]
    if without:
        raise _refused(
            reference, "a gradient for every parameter",
            f"none for {', '.join(without[:5])}{' ...' if len(without) > 5 else ''}, on which the outputs do "
            "not depend; use these layers, leave them out, or set requires_grad = False",
        )  # fmt: skip
    moved = [n for n, b in model.named_buffers() if n in hidden and not torch.equal(b, hidden[n])]
    if moved:
        raise _refused(
            reference, "buffers that are saved, where training changes them",
            f"{moved[0]!r} with persistent=False, which would pass from one client to the next",
        )  # fmt: skip
    try:
        model(x[:1])
    except Exception as err:  # whatever the user's code raises
        raise _refused(
            reference, "a model that can train on a single example, as a client's last batch may be one",
            f"an error: {place(err)}",
        ) from err  # fmt: skip


def _tensors(out: Any) -> list[torch.Tensor]:
    """Return the tensors of a model's outputs, which a loss may take in any form."""
    if isinstance(out, Mapping):
        out = list(out.values())
    if isinstance(out, list | tuple):
        return [t for part in out for t in _tensors(part)]
    return [out] if isinstance(out, torch.Tensor) else []


def _run(reference: str, model: nn.Module, x: torch.Tensor, what: str) -> Any:
    """Return the outputs; refuse a model that fails, or that writes into examples which are read again."""
    given = x.clone()
    try:
        with torch.set_grad_enabled(model.training):
            out = model(x)
    except Exception as err:  # whatever the user's code raises
        kind = str(x.dtype)[6:]
        raise _refused(
            reference, f"a model that takes {what}, {kind}{list(x.shape)}", f"an error: {place(err)}"
        ) from err
    if not torch.equal(x, given):
        raise _refused(
            reference, "a model that leaves its inputs as they are, since they are measured again",
            "one that writes into them; make it x = x - 0.5 in place of x -= 0.5, and inplace=False in the "
            "first layers",
        )  # fmt: skip
    return out


def output_layer(model: nn.Module, x: torch.Tensor) -> str | None:
    """Return the path of the linear layer whose output is the model's, found by a run on examples."""
    was = model.training
    try:
        with linear_calls(model) as calls, torch.no_grad():
            result = model.eval()(x)
    finally:
        model.train(was)
    return next((path for path, _, out in reversed(calls) if out is result), None)


def without_output_layer(
    reference: str, model: nn.Module, shape: Shape, *, text: bool
) -> tuple[nn.Linear, nn.Module]:
    """Return the last layer and, with nothing in its place, the model in front of it.

    Raises:
        ConfigError: The model fails, or its outputs are not those of a linear layer.
    """
    x = examples(model, shape, 1, text=text)
    _run(reference, model.eval(), x, "an example")
    path = output_layer(model.train(), x)
    last = model.get_submodule(path) if path else None
    if path is None or not isinstance(last, nn.Linear):
        raise no_last_linear("FENDA", model)
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, nn.Identity())
    return last, model


def _order(model: nn.Module, x: torch.Tensor) -> list[str]:
    """Return the paths of the modules in the order in which they end their first run."""
    ended: dict[str, None] = {}
    hooks = [
        m.register_forward_hook(lambda _, args, out, path=path: ended.setdefault(path))
        for path, m in model.named_modules()
    ]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return list(ended)


def _check_order(reference: str, model: nn.Module, order: list[str], key: str, count: int) -> None:
    """Refuse last layers that do not run last: they are taken by the order of their declaration."""
    paths = dict.fromkeys(name.rpartition(".")[0] for name, _ in model.named_parameters())
    # It is unknown when a module runs that contains others, or that is not called as a module.
    owners = [p for p in paths if p in order and not any(model.get_submodule(p).children())]
    if not count or not {*list(paths)[-count:]} <= {*owners}:
        return
    last = sorted(owners, key=order.index)[-count:]
    if {*owners[-count:]} != {*last}:
        raise _refused(
            reference, f'layers that are declared in the order in which they run, as "{key}" = {count} takes '
            "the last ones", f"{', '.join(owners[-count:])} as the last to be declared and {', '.join(last)} "
            "as the last to run; declare them in order" + ("" if key == "fedala.layers" else
            ', or name the private ones with "private-layers"'),
        )  # fmt: skip


def check_linear(reference: str, model: nn.Module, shape: Shape) -> None:
    """Refuse a model whose first layer is not linear in the features, for FSVRG's sparse form.

    Raises:
        ConfigError: It is not.
    """
    layers = [m for m in model if not isinstance(m, nn.Flatten)] if isinstance(model, nn.Sequential) else []
    first = layers[0] if layers else model
    if not isinstance(first, nn.Linear) or first.in_features != math.prod(shape):
        raise _refused(
            reference, "an nn.Sequential whose first layer is linear in the features, as fsvrg-sparse scales "
            "its columns", type(first).__name__,
        )  # fmt: skip


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))


def _refused(reference: str, expected: str, got: str) -> ConfigError:
    return ConfigError(f'run-config key "model": "{reference}": expected {expected}; got {got}')
