"""Calibration on one's own labels: what is fitted, what it belongs to, and how it is applied.

A calibration turns a distribution over labels into another one that labelled rows bear out. It is fitted by
`mis-server calibrate`, kept in a file, and applied on the host, in float64, wherever a task turns the engine's outputs
into a result: over HTTP, in files and on Ray by the same code, so with the same bits (decision 43).
"""

from mis_core.calibration.calibrations import Calibrations
from mis_core.calibration.entry import Curve, Entry, Figures, Scaling, Threshold, log_softmax, softmax
from mis_core.calibration.identity import Identity, ModelIdentity, digest_of, label_tuples, relative_orders

__all__ = [
    "Calibrations",
    "Curve",
    "Entry",
    "Figures",
    "Identity",
    "ModelIdentity",
    "Scaling",
    "Threshold",
    "digest_of",
    "label_tuples",
    "log_softmax",
    "relative_orders",
    "softmax",
]
