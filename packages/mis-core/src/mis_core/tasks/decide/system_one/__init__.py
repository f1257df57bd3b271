"""The task `decide` as System One asks it: one state, and questions by their ids."""
