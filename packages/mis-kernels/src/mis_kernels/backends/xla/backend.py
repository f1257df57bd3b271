"""Plain XLA as it comes."""

from mis_kernels.backends.protocol import Backend


class XlaBackend(Backend):
    """On accelerators."""

    name = "xla"
    platforms = ("gpu", "tpu")


class XlaCpuBackend(Backend):
    """On CPUs, which move and multiply float32 and integers faster than bfloat16."""

    name = "xla"
    platforms = ("cpu",)
    fastest_dtype = "float32"
    normalised_rows = 128
    drawn_rows = 1
    vocab_chunk = 8192
    keeps_bits = True
    recomputes_operands = False


BACKENDS = (XlaCpuBackend, XlaBackend)
