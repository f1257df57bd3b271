"""Plain XLA: runs on every device."""
