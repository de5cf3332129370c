"""`python -m bathy`, which torchrun also uses."""

from bathy.cli import main

if __name__ == "__main__":
    main()
