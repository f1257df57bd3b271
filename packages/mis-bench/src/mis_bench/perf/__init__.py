"""Two versions of the engine compared on one machine, turn by turn, and figures that were stored before."""
