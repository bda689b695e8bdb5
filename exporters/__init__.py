"""Checkpoint → family → torch module → ONNX graph → engine file."""

if __name__ != "vtk.exporters":
    raise ImportError("import vtk.exporters, not exporters: a second copy of the module would not share its types")
