"""What goes over HTTP, as pydantic models: replies are built from them, bodies only described by them."""
