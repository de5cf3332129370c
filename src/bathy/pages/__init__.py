"""Pages that need no network: one template, stylesheet and palette for reports, the demo, `watch` and `serve`.

base.html     what every page has: landmarks, style, charts
parts.html    the summary on top, figures with captions, tables
style.css     light, dark, phone and print
page.js       draws the charts in the width they have
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bathy.errors import require

CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#9c7a00", "#808080", "#7b5bd6", "#b04a6f")
"""Colours of lines and points, after Okabe and Ito: told apart with any colour vision, and 3 to 1 against white and dark."""
BADGES = {"serious": "failing", "warning": "warning", "note": "note", "healthy": "fine"}


@dataclass(frozen=True)
class Summary:
    """What a page says first: what is wrong (or that nothing is), since when, and what to do."""

    tone: str
    """serious, warning, note or healthy."""
    what: str
    since: str = ""
    todo: str = ""
    badge: str = ""
    """The word above it; by default the tone's."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "badge", self.badge or BADGES[self.tone])


def render_page(package: str, template: str, charts: Mapping[str, Any] | None = None, **values: Any) -> str:
    """A package's template, which extends base.html, with its charts and all that draws them inside it; every value is escaped.

    `charts` is left out by a page that has none, now or later: it then holds no code that draws them.
    """
    vega = "" if charts is None else require("vl_convert", "clinic").javascript_bundle().replace("</script", "<\\/script")
    found = environment(package).get_template(template)
    return str(found.render(specs=embedded(specs(charts or {})), vega=vega, **values))


def environment(package: str) -> Any:
    """Templates of a package, and those that all share."""
    jinja2 = require("jinja2", "clinic")
    loaders = [jinja2.PackageLoader(name, ".") for name in (package, "bathy.pages")]
    return jinja2.Environment(loader=jinja2.ChoiceLoader(loaders), autoescape=True, undefined=jinja2.StrictUndefined)


def specs(charts: Mapping[str, Any]) -> dict[str, Any]:
    """The charts as Vega-Lite, in the colours of all pages."""
    return {name: _coloured(chart.to_dict(validate=False)) for name, chart in charts.items()}


def _coloured(spec: dict[str, Any]) -> dict[str, Any]:
    config = spec.get("config", {})
    return spec | {"config": config | {"range": {"category": list(CATEGORIES)}, "font": "system-ui, sans-serif"}}


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or opens a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for mark in "&<>\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text
