"""`python -m vtk`, the same as the command `vtk`."""

import sys

from vtk.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
