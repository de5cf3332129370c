"""What a model's sites must be, by ways that share nothing with the code under test: its source's additions, its config."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

ADDITIONS = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}
NOISE, DRAWS, MANY_DRAWS = 0.02, 3, 15
"""Relative size of the change of every matrix, how often it is drawn, and how often where that leaves it unclear."""
PICTURES = 8
"""Pictures by which BatchNorm is asked: by two, the numbers of a deep layer, few as they are, say little."""


class Additions(TorchFunctionMode):
    """Counts the sums x + f(x) that the model's Python code makes, as a reader of it would.

    Both operands have one shape, and one of them is something that a module took before, or an earlier sum: not the result of
    a projection, as where a residual block changes its width.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.taken: dict[int, Tensor] = {}

    def take(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note what a module takes."""
        self.taken |= {id(value): value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [a for a in args if isinstance(a, Tensor)]
        if func in ADDITIONS and len(tensors) == 2 and tensors[0].shape == tensors[1].shape:
            stream = tensors[0].dim() > 1 and tensors[0].is_floating_point() and not isinstance(tensors[1], nn.Parameter)
            found = stream and any(id(tensor) in self.taken for tensor in tensors)
            self.count += found
            result = func(*args, **(kwargs or {}))
            self.taken |= {id(result): result} if found else {}
            return result
        return func(*args, **(kwargs or {}))


def run(model: nn.Module, batch: Any) -> Any:
    """The model's output in evaluation mode, by its modules; the model is left in that mode."""
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            model.eval()
            if isinstance(batch, dict):
                return model(**batch)
            return model(*batch) if isinstance(batch, tuple) else model(batch)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def additions(model: nn.Module, batch: Any) -> int:
    """How many sums of two streams the model's source runs."""
    counter, model = Additions(), copy.deepcopy(model)
    for module in model.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            module.register_forward_pre_hook(counter.take, with_kwargs=True)
    with counter:
        run(model, batch)
    return counter.count


def leaves(value: Any) -> Iterator[Tensor]:
    """The floating-point tensors of an output, whatever holds them."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value.detach().double()
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif hasattr(value, "__dict__"):
        yield from leaves({k: v for k, v in vars(value).items() if isinstance(v, Tensor | list | tuple | dict)})


def results(model: nn.Module, batch: Any) -> list[Tensor]:
    """What the model gives for the batch, dropout off; caches and other state of a call are not counted twice."""
    with torch.random.fork_rng():
        torch.manual_seed(0)  # some draw at random in evaluation too, as masked autoencoders do
        return list(leaves(run(copy.deepcopy(model), batch)))


def gap(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest difference of two results, relative to the largest finite number of the first."""
    assert len(a) == len(b)
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        differ = ~((x == y) | (x.isnan() & y.isnan()))
        if bool(differ.any()):
            size = x[x.isfinite()].abs().max().clamp(min=1) if bool(x.isfinite().any()) else torch.tensor(1.0)
            worst = max(worst, float(((x - y).abs()[differ] / size).nan_to_num(nan=float("inf")).max()))
    return worst


def response(model: nn.Module, batch: Any, draws: int = DRAWS) -> float:
    """How far the largest result moves, in units of its own spread, when every matrix changes by a small share of its size.

    This is what depth amplifies and a remedy must lower (Theorem 2 of the paper), measured without any of bathy's code.
    """
    model, batch = as_in_training(model, batch)
    plain = max(results(model, batch), key=Tensor.numel)
    spread = (plain - plain.mean()).square().mean().clamp(min=1e-30)
    shaken_ones = (max(results(shaken(model, draw), batch), key=Tensor.numel) for draw in range(draws))
    moved = [(other - plain).square().mean() / spread for other in shaken_ones]
    return float(torch.stack(moved).mean().sqrt())


def as_in_training(model: nn.Module, batch: Any) -> tuple[nn.Module, Any]:
    """A copy whose BatchNorm normalises by the batch, and a batch large enough for that; other models as they are.

    What it normalises by in evaluation is still of no data: with it the model is another function than the one to be trained.
    """
    model = copy.deepcopy(model)
    found = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    for module in found:
        module.running_mean = module.running_var = None
    pictures = isinstance(batch, Tensor) and batch.dim() == 4
    generator = torch.Generator().manual_seed(1)
    return model, torch.randn(PICTURES, *batch.shape[1:], generator=generator) if found and pictures else batch


def shaken(model: nn.Module, draw: int) -> nn.Module:
    """A copy whose matrices, embeddings left out, are each changed by noise of NOISE times their own deviation."""
    generator = torch.Generator().manual_seed(draw)
    model = copy.deepcopy(model)
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and id(parameter) not in tables and parameter.is_floating_point() and parameter.numel() > 1:
                scale = NOISE * parameter.float().std()
                parameter.add_((torch.randn(parameter.shape, generator=generator) * scale).to(parameter.dtype))
    return model
