"""C++ for x86-64 CPUs with AVX-512, in bfloat16 (or with AMX) and int8; see `native/` and `hatch_build.py`."""
