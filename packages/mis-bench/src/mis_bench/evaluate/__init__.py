"""`mis-bench evaluate`: how right, and how well calibrated, targets are on labelled data."""
