"""What is counted and logged."""
