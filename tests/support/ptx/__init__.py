"""PTX on a CPU: what a compiler made of the kernels, translated to C++ on the fibers of `kernels/cuda_host`."""
