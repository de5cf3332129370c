"""What messages are made of."""

import pytest

from bathy.errors import some


@pytest.mark.parametrize("count", range(20))
def test_of_many_names_the_first_stand_there_and_the_others_are_counted(count: int) -> None:
    names = [f"run_{number:02}" for number in range(count)]
    listed, _, more = some(reversed(names)).partition(" and ")
    shown = [name for name in listed.split(", ") if name]
    assert shown == names[: len(shown)]
    assert len(shown) + int(more.partition(" ")[0] or 0) == count and len(shown) <= 7
