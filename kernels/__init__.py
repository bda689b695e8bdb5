"""One folder per op: a plain reference and its fast twins."""

if __name__ != "vtk.kernels":
    raise ImportError("import vtk.kernels, not kernels: a second copy of the module would not share its types")
