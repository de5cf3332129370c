"""`bathy watch RUN…`: a page that follows runs while they train, and shows finished ones.

tail      rows of a file that another process writes
run       one run: rows, warnings, state
page      the page, and the parts of it that change
server    both over HTTP, on loopback
"""

from bathy.lab.watch.page import Watch
from bathy.lab.watch.server import serve

__all__ = ["Watch", "serve"]
