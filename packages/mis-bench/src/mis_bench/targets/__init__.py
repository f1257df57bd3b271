"""What can be measured: our engine, servers over HTTP, PyTorch and llama.cpp."""
