"""Block diagrams of schemes as SVG, drawn from the residuals that the table builds (the paper's Figures 2 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torch import nn

from bathy.core.residual import Residual, Scale, Shift
from bathy.core.schemes import SCHEMES
from bathy.core.transformer import Stack, TransformerConfig

STEP, ROW, LEFT = 62, 86, 230
"""Pixels from part to part, from row to row, and before the stream starts."""

STYLE = """text{font:13px sans-serif;fill:#222}.name{font-weight:600}.note{font-size:11px;fill:#666}
path,rect,circle{fill:none;stroke:#445;stroke-width:1.4}.norm{fill:#fde7b0}.branch{fill:#cfe3fb}.scale{fill:#d9f2d0}
rect+text,circle+text{fill:#222;text-anchor:middle}
@media(prefers-color-scheme:dark){text{fill:#ddd}.note{fill:#aaa}path,rect,circle{stroke:#99a}}"""


def diagram(names: Sequence[str], sublayers: int = 1) -> str:
    """The named schemes, one a row, each with this many sub-layers: shortcut above, branch on the line."""
    rows = [_row(name, sublayers) for name in names]
    width = LEFT + max(length for _, length in rows) + 40
    body = "".join(f'<g transform="translate(0,{i * ROW})">{parts}</g>' for i, (parts, _) in enumerate(rows))
    size = f'viewBox="0 0 {width} {ROW * len(rows)}" width="{width}" height="{ROW * len(rows)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><style>{STYLE}</style>{body}</svg>\n'


def _row(name: str, sublayers: int) -> tuple[str, int]:
    """One scheme's drawing and its length."""
    stack = _stack(name)
    residuals = [module for module in stack.modules() if isinstance(module, Residual)]
    x, drawn = LEFT, _text(8, 58, name, "name")
    final = _parts(stack.final)
    for part in _parts(stack.first):
        drawn, x = drawn + _box(x, *part), x + STEP
    for i, residual in enumerate(_examples(residuals, sublayers)):
        if i and sublayers == 1:
            drawn, x = drawn + _text(x - 20, 58, "…"), x + 22
        drawn_one, x = _sublayer(residual, x)
        drawn += drawn_one
    if final:
        drawn, x = drawn + _text(x - 20, 58, "…"), x + 22  # the other sub-layers stand here
    for part in final:
        drawn, x = drawn + _box(x, *part), x + STEP
    return drawn + _arrow(x - 24, x), x - LEFT


def _examples(residuals: Sequence[Residual], sublayers: int) -> list[Residual]:
    """The sub-layers to draw: the first ones, or one that stands for all and, where it is built otherwise, the last."""
    if sublayers > 1:
        return [residuals[min(i, 1)] for i in range(sublayers)]
    second, last = residuals[1], residuals[-1]  # the second: Admin's first shortcut has no ω
    alike = _parts(second.pre) == _parts(last.pre)
    return [second] if alike else [second, last]


def _sublayer(residual: Residual, x: int) -> tuple[str, int]:
    """pre, f and branch on the line, the shortcut above them, the sum, and post; and where the line has come to."""
    start, drawn = x, ""
    for part in [*_parts(residual.pre), ("f", "branch"), *_parts(residual.branch)]:
        drawn, x = drawn + _box(x, *part), x + STEP
    arc = f'<path d="M{start - 8} 54 V20 H{x + 10} V43"/>'
    skip = _parts(residual.skip)
    if skip:
        arc += f'<rect class="scale" x="{(start + x) // 2 - 20}" y="9" width="38" height="22" rx="6"/>'
        arc += _text((start + x) // 2 - 1, 25, skip[0][0])
    plus = f'<circle cx="{x + 10}" cy="54" r="10"/>' + _text(x + 10, 59, "+") + _arrow(x - 24, x)
    drawn, x = drawn + arc + plus, x + 44
    for part in _parts(residual.post):
        drawn, x = drawn + _box(x, *part), x + STEP
    return drawn, x


def _parts(module: nn.Module) -> list[tuple[str, str]]:
    """(label, class) of what a place holds."""
    if isinstance(module, nn.Sequential):
        return [part for child in module for part in _parts(child)]
    if isinstance(module, nn.Identity):
        return []
    if isinstance(module, Shift):
        return [("+ b", "scale")]
    if isinstance(module, Scale):
        return [(_scale_label(module), "scale")]
    return [("LN", "norm")]


def _scale_label(scale: Scale) -> str:
    if isinstance(scale.omega, float):
        return "· c"
    return "· ω" if scale.omega.numel() > 1 else "· α"


def _stack(name: str) -> Stack:
    """The smallest stack of a scheme."""
    config = TransformerConfig(vocab=8, width=8, ffn=8, heads=1, encoder_layers=4, decoder_layers=0, encoder_scheme=name)
    return Stack(config, "encoder")


def _box(x: int, label: str, kind: str) -> str:
    frame = f'<rect class="{kind}" x="{x}" y="41" width="38" height="26" rx="6"/>'
    return _arrow(x - 24, x) + frame + _text(x + 19, 59, label)


def _text(x: int, y: int, label: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escape(label)}</text>'


def _arrow(start: int, stop: int) -> str:
    return f'<path d="M{start} 54 H{stop} M{stop - 5} 50 L{stop} 54 L{stop - 5} 58"/>'


def drawings() -> dict[str, str]:
    """File name to drawing: every scheme's block, and the position of norms over three sub-layers."""
    return {
        "schemes.svg": diagram(list(SCHEMES)),
        "norm_positions.svg": diagram(["post_ln", "pre_ln", "admin"], sublayers=3),
    }
