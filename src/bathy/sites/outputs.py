"""What makes a branch as large as it is: the last matrix, or the norm that ends it, on every way to the sum."""

from __future__ import annotations

from dataclasses import dataclass, field

from bathy.sites.connections import Connection
from bathy.sites.graph import Graph
from bathy.sites.matrices import FUSED_ATTENTION, PRODUCTS, Use, uses_of
from bathy.sites.meaning import FACTORS, JOINS, PIECES, POOLS, SUMS, VIEWS

THROUGH = (
    VIEWS | PIECES | POOLS | {"relu", "leaky_relu", "neg", "copy", "masked_fill", "sum", "abs", "cumsum", "native_dropout"}
)
"""What a factor passes: applied before, it comes out behind."""
ADDS = SUMS | JOINS | {"index_add", "scatter_add", "where", "maximum", "minimum", "addcmul"}


@dataclass
class Ends:
    """Where the ways from a sum back into its branch end."""

    uses: dict[tuple[int, str], Use] = field(default_factory=dict)
    norms: dict[str, int] = field(default_factory=dict)
    """Norms by path."""
    unclear: str = ""
    """Why a factor on what was found would not be a factor on the branch; empty when it would."""

    def join(self, other: Ends) -> Ends:
        """Both, one after the other: all their ways must be clear."""
        return Ends(self.uses | other.uses, self.norms | other.norms, self.unclear or other.unclear)

    @property
    def empty(self) -> bool:
        """Whether nothing was found."""
        return not self.uses and not self.norms


class Walk:
    """Goes back from a sum through everything that a factor passes."""

    def __init__(self, graph: Graph, c: Connection) -> None:
        self.graph, self.c = graph, c
        self.known: dict[int, Ends] = {}

    def ends(self) -> Ends:
        """Where all branches of the connection end."""
        found = Ends()
        for branch in self.c.branches:
            found = found.join(self._from(branch))
        return found if not found.empty or found.unclear else Ends(unclear="it has no matrix")

    def _from(self, number: int) -> Ends:
        if number not in self.known:
            self.known[number] = Ends(unclear="it is computed in a circle")
            self.known[number] = self._look(number)
        return self.known[number]

    def _look(self, number: int) -> Ends:
        value = self.graph.values[number]
        if not value.floating:  # indices
            return Ends()
        if not self.graph.depends(number, self.c.x):
            return Ends()
        if number == self.c.x or number < self.c.x:
            return Ends(unclear="part of its branch is the stream itself")
        found = uses_of(self.graph, value)
        if found and not found[0].opaque:
            return Ends({(use.number, use.weight): use for use in found})
        if value.op == "norm":
            return Ends(norms={value.path: number}) if value.path else Ends(unclear="it ends in a norm that is no module")
        if value.op in THROUGH:
            return self._from(value.inputs[0])
        if value.op in ADDS or (value.op == "lerp" and len(value.inputs) == 2):
            return self._all(value.inputs)
        if value.op in FACTORS or value.op in PRODUCTS or value.op.startswith(FUSED_ATTENTION):
            return self._factor(value.inputs[2:3] if value.op.startswith(FUSED_ATTENTION) else value.inputs)
        return Ends(unclear=f"it ends in {value.op}, which a factor does not pass")

    def _all(self, numbers: tuple[int, ...]) -> Ends:
        found = Ends()
        for number in numbers:
            found = found.join(self._from(number))
        return found

    def _factor(self, numbers: tuple[int, ...]) -> Ends:
        """Of a product it is enough to find one factor: a gate, a mask or attention's weights are the other."""
        results = [self._from(number) for number in numbers]
        clear = [result for result in results if not result.empty and not result.unclear]
        return clear[0] if clear else next((result for result in results if result.unclear), Ends())
