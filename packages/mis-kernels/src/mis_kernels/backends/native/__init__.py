"""C++ for CPUs that multiply bfloat16 or int8: AVX-512, AMX, ARM; see `native/` and `hatch_build.py`."""
