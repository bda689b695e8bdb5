"""Request → scheduler → block manager + prefix cache → model runner → sampler → stream."""

if __name__ != "vtk.llm_serving":
    raise ImportError("import vtk.llm_serving, not llm_serving: a second copy of the module would not share its types")
