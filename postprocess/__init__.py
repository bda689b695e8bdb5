"""Raw outputs + geometry → results."""

if __name__ != "vtk.postprocess":
    raise ImportError("import vtk.postprocess, not postprocess: a second copy of the module would not share its types")
