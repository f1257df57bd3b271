"""C++ for x86-64 CPUs with AMX."""
