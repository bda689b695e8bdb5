"""Bytes → RGB picture → tensors + geometry."""

if __name__ != "vtk.preprocess":
    raise ImportError("import vtk.preprocess, not preprocess: a second copy of the module would not share its types")
