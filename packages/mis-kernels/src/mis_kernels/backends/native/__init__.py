"""C++ for x86-64 CPUs with AMX, in bfloat16; see `native/` and `hatch_build.py` of the source tree."""
