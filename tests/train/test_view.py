"""What a run shows of itself."""

from __future__ import annotations

import math

from bathy import console
from bathy.train.view import View


def test_a_spark_goes_from_its_highest_to_its_lowest() -> None:
    assert console.spark([3.0, 2.0, 1.0]) == "█▅▁"
    assert len(console.spark(list(range(100)))) == 30


def test_a_spark_leaves_out_what_is_not_finite() -> None:
    assert console.spark([3.0, math.nan, 2.0, math.inf, 1.0]) == console.spark([3.0, 2.0, 1.0])
    assert console.spark([math.nan]) == ""


def test_the_table_has_the_newest_value_of_everything_shown_and_the_loss_so_far() -> None:
    view = View(steps=40, labels={"source_gap": ("source gap", ".3f")}, quiet=True)
    view.show(step=10, loss=5.0, eta=65.0)
    view.show(step=10, valid_loss=4.5, source_gap=0.25)
    view.show(step=20, loss=3.0, eta=3600.0)
    shown = console.as_text(view.table())
    for part in ("update 20 of 40", "3.000", "4.500", "0.250", "1:00:00", "█▁"):
        assert part in shown
    assert "5.000" not in shown
