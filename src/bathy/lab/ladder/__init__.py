"""The depth ladder: which scheme carries which depth, up to which learning rate, at equal width and tokens.

Rungs are depths; on each, every scheme is trained at every rate and seed, on the sweep's machinery: any number of workers on
any machines, resumed where they stopped.
"""
