import math
from pathlib import Path

import pytest

from bathy.clinic.readings import Reading, groups, mean_over, read, select, to_line, values, write
from bathy.errors import DataError

ROWS = [
    Reading("beta", 0.5, "dependency", model="a", site="encoder.layers.0.ffn", stack="encoder", layer=1, index=2, j=0),
    Reading("loss", math.nan, step=3, model="ü<b>\u2028"),
    Reading("loss", 2.0, step=4, seed=1),
]


def test_written_rows_are_read_back(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", ROWS, {"command": "test"})
    rows, origin = read(tmp_path / "r.jsonl")
    assert origin == {"command": "test"}
    assert [to_line(row) for row in rows] == [to_line(row) for row in ROWS]
    assert math.isnan(rows[1].value)


def test_a_line_cut_off_at_the_end_is_passed_over_and_one_in_the_middle_is_an_error(tmp_path: Path) -> None:
    lines = [to_line(row) for row in ROWS]
    (tmp_path / "cut.jsonl").write_text("\n".join([*lines, lines[0][:20]]))
    assert len(read(tmp_path / "cut.jsonl")[0]) == 3
    (tmp_path / "bad.jsonl").write_text("\n".join([lines[0], "{]", lines[1]]))
    with pytest.raises(DataError, match="line 2"):
        read(tmp_path / "bad.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "none.jsonl")


def test_rows_are_selected_grouped_and_averaged_by_column() -> None:
    rows = [Reading("x", float(i), seed=i % 2, layer=i // 2) for i in range(6)]
    assert values(rows, "x", seed=1) == [1.0, 3.0, 5.0] and select(rows, "y") == []
    assert [(key, len(part)) for key, part in groups(rows, "layer")] == [((0,), 2), ((1,), 2), ((2,), 2)]
    assert mean_over(rows, "layer") == {(0,): 0.5, (1,): 2.5, (2,): 4.5}
