"""The CUDA C++ kernel family: real `.cu` files, one operation a file, and the launcher that runs them."""
