"""Model definitions over the operations of `vtk.kernels`."""
