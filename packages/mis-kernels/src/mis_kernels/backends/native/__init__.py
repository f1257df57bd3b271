"""C++ for x86-64 CPUs with AVX-512, in bfloat16 (with AMX where there is) and int8; see `native/` and `hatch_build.py` of the source tree."""
