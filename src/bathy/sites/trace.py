"""Find the residual sites of any model from one forward pass, without reading or editing its code.

Sites that hand each other the stream, with nothing between them but what keeps it a stream (norms, masks, factors, clamps,
pooling, tokens picked or put together), are a stack.
"""

from __future__ import annotations

from torch import nn

from bathy.errors import ModelError
from bathy.sites.batch import Batch, on_device_of
from bathy.sites.build import Builder
from bathy.sites.confirm import confirm
from bathy.sites.connections import connections, link, places
from bathy.sites.graph import Graph, record
from bathy.sites.hooks import Sites, hooked_sites
from bathy.sites.meaning import SUMS
from bathy.sites.norms import mark_norms
from bathy.sites.wrapped import refuse_compiled


def find_sites(model: nn.Module, batch: Batch) -> Sites:
    """The residual sites of any model in the order of execution, from a pass over the batch; print them for a table.

    The structure comes from evaluation mode, where no layer is dropped at random; a pass in training mode confirms it. The
    result's `passed_over` lists the additions that are no residual, and why. The model stays as it was.
    """
    known = hooked_sites(model)
    if known:
        return known
    refuse_compiled(model)
    batch = on_device_of(model, batch)
    graph = record(model, batch)
    mark_norms(graph)
    found = Sites(batch)
    connected = connections(graph, found.passed_over)
    if not connected:
        why = f"; of the first, {found.passed_over[0].reason}" if found.passed_over else _hint(graph)
        seen = f"{len(found.passed_over)} additions of tensors seen in evaluation mode, none of them one{why}"
        raise ModelError(f"{type(model).__name__} has no residual connection x + f(x) that can be found: {seen}")
    link(graph, connected)
    Builder(model, graph, found, places(graph, connected)).build()
    confirm(model, batch, found)
    return found


def _hint(graph: Graph) -> str:
    """What to do where all that is added is vectors."""
    vectors = [value for value in graph.values if value.op in SUMS and value.floating and len(value.shape) == 1]
    return "; it adds vectors: give it a batch, so that its stream has two dimensions" if vectors else ""
