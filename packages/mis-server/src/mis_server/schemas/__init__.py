"""What goes over HTTP. Replies are built from these classes; bodies are only described by them."""
