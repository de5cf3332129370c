"""Sweeps: every point of a grid as a resumable run, shared by any number of workers through Optuna's storage."""

from bathy.lab.sweep.grid import Grid, changes, folder_name
from bathy.lab.sweep.study import Sweep, connect, work

__all__ = ["Grid", "Sweep", "changes", "connect", "folder_name", "work"]
