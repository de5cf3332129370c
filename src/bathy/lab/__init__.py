"""The lab: the paper's claims, figures and tables as commands, sweeps, and benchmarks."""
