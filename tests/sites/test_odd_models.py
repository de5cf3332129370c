# mypy: disable-error-code="operator, union-attr, attr-defined, arg-type, misc, var-annotated"
"""Models written by hand in ways that libraries do not write them; what each has is known by construction."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import gap, response, results
from torch import Tensor, nn

import bathy
from bathy.errors import ModelError

WIDTH, LAYERS, VOCAB = 32, 4, 50
Step = Callable[[Any, Tensor], Tensor]
"""One layer: from itself and the stream to the stream."""


def tokens() -> Tensor:
    return torch.randint(1, VOCAB, (4, 8), generator=torch.Generator().manual_seed(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.a(x)))


class Layer(nn.Module):
    """Attention, a feed-forward, two norms, and whatever step it is given."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step, self.att, self.ffn = step, Attention(), FeedForward()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.gru = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)

    def forward(self, *streams: Tensor) -> Any:
        return self.step(self, *streams)


class Net(nn.Module):
    """Embeds, runs its layers one after the other, guesses."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 7)
        self.layers: Any = nn.ModuleList(Layer(step) for _ in range(LAYERS))
        for parameter in self.layers.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(F.layer_norm(x, (WIDTH,)))


def post(add: Callable[[Tensor, Tensor], Tensor]) -> Step:
    def step(layer: Any, x: Tensor) -> Tensor:
        x = layer.n1(add(x, layer.att(x)))
        return layer.n2(add(x, layer.ffn(x)))

    return step


def pre(add: Callable[[Tensor, Tensor], Tensor]) -> Step:
    def step(layer: Any, x: Tensor) -> Tensor:
        x = add(x, layer.att(layer.n1(x)))
        return add(x, layer.ffn(layer.n2(x)))

    return step


def functional(layer: Any, x: Tensor) -> Tensor:
    """Norms as function calls: no module shows what lies between them."""
    x = x + layer.att(F.layer_norm(x, (WIDTH,)))
    return x + 0.9 * layer.ffn(F.layer_norm(x, (WIDTH,)))


def recurrent(layer: Any, x: Tensor) -> Tensor:
    x = x + layer.att.out(layer.gru(layer.n1(x))[0])
    return x + layer.ffn(layer.n2(x))


def fused(layer: Any, x: Tensor) -> Tensor:
    """The second sum within addmm."""
    x = layer.n1(x + layer.att(x))
    hidden = F.gelu(layer.ffn.a(x)).flatten(0, 1)
    return layer.n2(torch.addmm(x.flatten(0, 1), hidden, layer.ffn.b.weight.t()).view_as(x))


def turned(x: Tensor, a: Tensor) -> Tensor:
    return torch.einsum("btd->bdt", x).permute(0, 2, 1) + a


def carried_sum(x: Tensor, a: Tensor) -> Tensor:
    return sum([x, a])  # type: ignore[return-value]


def mean(x: Tensor, a: Tensor) -> Tensor:
    return torch.stack([x, a]).mean(0)


def blend(x: Tensor, a: Tensor) -> Tensor:
    return torch.lerp(x, a, 0.3)


TREATED: dict[str, tuple[Step, str, str]] = {
    "sum() of a list": (post(carried_sum), "post", "admin"),
    "a shortcut turned and turned back": (post(turned), "post", "admin"),
    "a sum within addmm": (fused, "post", "admin"),
    "half of both": (pre(mean), "pre", "scaled_init"),
    "lerp": (pre(blend), "pre", "scaled_init"),
    "norms as functions": (functional, "pre", "scaled_init"),
    "a recurrent branch": (recurrent, "pre", "scaled_init"),
}


@pytest.mark.parametrize("name", TREATED)
def test_it_has_its_sites_and_its_remedy_works(name: str) -> None:
    step, placement, remedy = TREATED[name]
    model, ids = Net(step), tokens()
    sites = bathy.find_sites(model, ids)
    assert (len(sites), {site.placement for site in sites}, len({site.stack for site in sites})) == (2 * LAYERS, {placement}, 1)
    before = response(model, ids)
    profile = bathy.stabilise_(model, ids, force=True)
    assert len(profile.sites) == 2 * LAYERS, profile.notes
    if not profile.treatments:  # a share of the branch that is small by itself
        assert "depth is not its problem" in str(profile)
        profile = bathy.stabilise_(model, ids, remedy)
    assert [t.remedy for t in profile.treatments] == [remedy]
    assert response(model, ids) < before
    folded = bathy.fold(model)
    assert gap(results(model, ids.flip(0)), results(folded, ids.flip(0))) < 1e-4


@pytest.mark.parametrize("add", [mean, blend])
def test_a_shortcut_that_the_model_scales_itself_is_refused_for_omega(add: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(ModelError, match="the model itself scales"):
        bathy.stabilise_(Net(post(add)), tokens())


class Coupled(Net):
    """Reversible layers: each of two streams is added to by the other."""

    def __init__(self) -> None:
        super().__init__(self.couple)

    @staticmethod
    def couple(layer: Any, a: Tensor, b: Tensor) -> Any:
        a = a + layer.att(layer.n1(b))
        return a, b + layer.ffn(layer.n2(a))

    def forward(self, ids: Tensor) -> Tensor:
        a = b = self.embed(ids)
        for layer in self.layers:
            a, b = layer(a, b)
        return self.head(a + b)


class Scores(Net):
    """RealFormer: a layer adds the attention scores of the layer before to its own."""

    def forward(self, ids: Tensor) -> Tensor:
        x, before = self.embed(ids), torch.zeros(())
        for layer in self.layers:
            q, k, v = layer.att.qkv(x).chunk(3, -1)
            before = q @ k.transpose(1, 2) / WIDTH**0.5 + before
            x = layer.n1(x + layer.att.out(before.softmax(-1) @ v))
            x = layer.n2(x + layer.ffn(x))
        return self.head(x)


class LongSkips(Net):
    """A U-Net: the second half adds what the first half gave."""

    def forward(self, ids: Tensor) -> Tensor:
        x, kept = self.embed(ids), []
        for i, layer in enumerate(self.layers):
            x = layer(x + kept.pop() if i > LAYERS // 2 else x)
            kept.append(x)
        return self.head(x)


class FromZeros(Net):
    """DETR's decoder: the stream begins as zeros, and learned queries are added to what attention reads."""

    def forward(self, ids: Tensor) -> Tensor:
        memory, queries = self.embed(ids), self.embed.weight[:5]
        x = torch.zeros(len(ids), 5, WIDTH)
        for layer in self.layers:
            x = layer.n1(x + layer.att(x + queries))
            x = layer.n2(x + layer.ffn(torch.cat([x, memory], 1))[:, :5] + memory.mean(1, keepdim=True))
        return self.head(x)


class Quantised(Net):
    """A residual quantiser behind the layers: x − Q(x) again and again, gradients straight through."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        total, rest = torch.zeros_like(x), x
        for layer in self.layers:
            inner = layer.ffn.a(rest)[..., :WIDTH]
            entry = layer.att.out.weight[(inner @ layer.att.out.weight.t()).argmax(-1)]
            entry = layer.ffn.b.weight @ F.pad(inner + (entry - inner).detach(), (0, WIDTH)).unsqueeze(-1)
            total, rest = total + entry.squeeze(-1), rest - entry.squeeze(-1)
        return self.head(total)


class Hyper(Net):
    """Hyper-connections: four streams, mixed by a matrix computed from them at every sum."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).unsqueeze(2).repeat(1, 1, 4, 1)
        for layer in self.layers:
            for branch, norm in ((layer.att, layer.n1), (layer.ffn, layer.n2)):
                weights = x @ layer.att.out.weight[:, :6]
                one = (weights[..., :1].sigmoid() * x).sum(2)
                x = weights[..., 1:2].sigmoid() * branch(norm(one)).unsqueeze(2) + weights[..., 2:].softmax(-1) @ x
        return self.head(x.sum(2))


class Switch(Net):
    """One expert for each token: rows of a table of matrices and of one of biases, which is no codebook."""

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        for layer in self.layers:
            layer.experts = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / WIDTH**0.5)
            layer.biases = nn.Parameter(torch.zeros(3, WIDTH))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer.n1(x + layer.att(x))
            best = (x @ layer.att.out.weight[:, :3]).argmax(-1)
            x = layer.n2(x + (layer.experts[best] @ x.unsqueeze(-1)).squeeze(-1) + layer.biases[best])
        return self.head(x)


def test_streams_beside_the_stream_are_told_apart() -> None:
    ids, plain = tokens(), post(torch.add)
    for model in (Coupled(), Scores(plain), LongSkips(plain), FromZeros(plain), Quantised(plain), Hyper(plain), Switch(plain)):
        sites = bathy.find_sites(model, ids)
        assert len(sites) == 2 * LAYERS, type(model).__name__
    assert {other.reason for other in bathy.find_sites(Scores(plain), ids).passed_over} >= {"is a sum of attention's scores"}


class LeftOut(Net):
    """One layer of the list is not run with this batch."""

    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids)
        for i, layer in enumerate(self.layers):
            x = x if i == 2 else layer(x)
        return self.head(x)


def test_a_layer_that_does_not_run_is_no_idle_expert_of_the_others() -> None:
    model, ids = LeftOut(pre(torch.add)), tokens()
    sites = bathy.find_sites(model, ids)
    assert [note for note in sites.notes if "layers.2: no residual there" in note]
    left = {name: value.clone() for name, value in model.layers[2].state_dict().items()}
    bathy.stabilise_(model, ids, "scaled_init")
    assert all(torch.equal(value, left[name]) for name, value in model.layers[2].state_dict().items())


class TwoStreams(Net):
    """Two streams whose branches end in the same matrices."""

    def forward(self, ids: Tensor) -> Tensor:
        x, y = self.embed(ids), self.embed.weight[:3].expand(len(ids), -1, -1)
        for layer in self.layers:
            y = y + layer.att.out(F.gelu(layer.n1(y) + x.mean(1, keepdim=True)))
            x = x + layer.att(layer.n1(x))
            x = x + layer.ffn(layer.n2(x))
        return self.head(x) + self.head(y).mean(1, keepdim=True)


def test_a_matrix_that_serves_two_stacks_is_scaled_once() -> None:
    model, ids = TwoStreams(pre(torch.add)), tokens()
    sites = bathy.find_sites(model, ids)
    chains = {site.stack for site in sites}
    assert len(chains) == 2
    most = max(sum(site.calls for site in sites if site.stack == stack) for stack in chains)
    before = model.layers[1].att.out.weight.clone()
    assert all(treatment.kept for treatment in bathy.stabilise_(model, ids, "scaled_init").treatments)
    torch.testing.assert_close(model.layers[1].att.out.weight, before / most**0.5)


class Stages(Net):
    """A matrix lies between the layers, as between the stages of a convolutional network: each layer is a stack of its own."""

    def __init__(self, step: Step) -> None:
        super().__init__(step)
        self.between = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for between, layer in zip(self.between, self.layers, strict=True):
            x = layer(F.layer_norm(between(x), (WIDTH,)))
        return self.head(x)


@pytest.mark.parametrize("sites", [1, 2])
def test_pieces_of_one_list_are_treated_as_the_one_stack_they_are(sites: int) -> None:
    """Not by the few sub-layers of each piece: of one alone, 1/√n would be 1."""
    step: Step = pre(torch.add) if sites == 2 else lambda layer, x: x + 2 * layer.ffn(layer.n2(x))
    model, ids = Stages(step), tokens()
    before, weight = response(model, ids), model.layers[1].ffn.b.weight.clone()
    profile = bathy.stabilise_(model, ids)
    assert len(profile.treatments) == LAYERS
    assert all(t.kept and t.after < t.before for t in profile.treatments)
    torch.testing.assert_close(model.layers[1].ffn.b.weight, weight / (sites * LAYERS) ** 0.5)
    assert response(model, ids) < before


def test_a_remedy_that_changes_nothing_is_undone_and_that_is_said() -> None:
    model, ids = Net(pre(torch.add)), tokens()
    model.layers = model.layers[:1]
    model.layers[0].step = lambda layer, x: x + layer.ffn(layer.n2(x))
    (treatment,) = bathy.stabilise_(model, ids, "scaled_init").treatments
    assert not treatment.kept
    assert "did not help and was undone" in str(treatment)


class Plain:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


@pytest.mark.parametrize(
    "wrap",
    [lambda y: {"loss": y.square().mean(), "n": 3}, lambda y: y.square().mean(), Plain],
    ids=["loss", "scalar", "object"],
)
def test_outputs_of_any_kind_are_examined_and_folded(wrap: Callable[[Tensor], Any]) -> None:
    class Wrapped(Net):
        def forward(self, ids: Tensor) -> Any:
            return wrap(super().forward(ids))

    model, ids = Wrapped(post(torch.add)), tokens()
    bathy.stabilise_(model, ids)
    assert bathy.examine(model, ids, exams=["activations", "source", "gradients"]).readings
    bathy.fold(model)


def test_what_cannot_be_verified_or_traced_is_refused() -> None:
    class Silent(Net):
        def forward(self, ids: Tensor) -> None:
            super().forward(ids)

    model, ids = Silent(post(torch.add)), tokens()
    bathy.stabilise_(model, ids)
    with pytest.raises(ModelError, match="no floating-point tensor by which folding could be verified"):
        bathy.fold(model)

    class Packed(Net):
        def forward(self, ids: Tensor) -> Tensor:
            x = torch.nested.nested_tensor([self.embed(row) for row in ids], layout=torch.jagged)
            return (x + self.layers[0].get_submodule("ffn")(x)).values()

    with pytest.raises(ModelError, match="nested tensors cannot be traced; give a padded batch"):
        bathy.find_sites(Packed(post(torch.add)), ids)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_parts_and_vmap_are_seen_through() -> None:
    model, ids = Net(post(torch.add)), tokens()
    for layer in model.layers:
        layer.ffn = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)))
    assert len(bathy.find_sites(model, ids)) == 2 * LAYERS
    bathy.stabilise_(model, ids)
    mapped = Net(pre(lambda x, a: torch.vmap(torch.add)(x, a)))
    assert len(bathy.find_sites(mapped, ids)) == 2 * LAYERS


def test_a_matrix_that_reads_the_stream_by_heads_is_refused_by_fold() -> None:
    class Gated(Net):
        """WavLM: a small matrix reads each head's part of the stream."""

        def __init__(self, step: Step) -> None:
            super().__init__(step)
            for layer in self.layers:
                layer.small = nn.Linear(WIDTH // 4, 1)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for layer in self.layers:
                gate = layer.small(x.unflatten(-1, (4, -1))).sigmoid().mean(-2)
                x = layer.n1(x + layer.att(x) * gate)
                x = layer.n2(x + layer.ffn(x))
            return self.head(x)

    model, ids = Gated(post(torch.add)), tokens()
    bathy.stabilise_(model, ids)
    with pytest.raises(ModelError, match="in pieces of 8, not 32"):
        bathy.fold(model)


def test_one_gamma_takes_up_one_omega_and_no_more() -> None:
    class ScaleNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.g = nn.Parameter(torch.tensor(WIDTH**0.5))

        def forward(self, x: Tensor) -> Tensor:
            return self.g * F.normalize(x, dim=-1)

    model, ids = Net(post(torch.add)), tokens()
    for layer in model.layers:
        layer.n1, layer.n2 = ScaleNorm(), ScaleNorm()
    bathy.stabilise_(model, ids)
    assert gap(results(model, ids), results(bathy.fold(model), ids)) < 1e-4
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bathy_omega" in name:
                parameter[0] += 1
    with pytest.raises(ModelError, match="has 1 γ for the 32 ω"):
        bathy.fold(model)
