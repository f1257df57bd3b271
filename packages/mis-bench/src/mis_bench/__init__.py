"""Workloads and measurements for multi-item scoring."""

from mis_bench.workload import CANONICAL, Workload, WorkloadNameError, build_workload

__version__ = "0.3.0"

__all__ = ["CANONICAL", "Workload", "WorkloadNameError", "__version__", "build_workload"]
