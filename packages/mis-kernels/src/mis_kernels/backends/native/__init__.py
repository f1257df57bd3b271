"""C++ for CPUs with AVX2, AVX-512, AMX or ARM's bfloat16; see `native/` and `hatch_build.py`."""
