"""Quantised weights that the TPU's kernels multiply with, in one pass from rows to rows."""

import dataclasses
from typing import Any, Self

import jax
from jaxtyping import Array, Int32

from mis_kernels.activations import Gate
from mis_kernels.backends.tpu import projection
from mis_kernels.backends.tpu.products import tpu_quantized_product
from mis_kernels.heads import HeadShape
from mis_kernels.quantized import QuantizedWeight
from mis_kernels.target import tpu_chip
from mis_kernels.weights import FoldedNorm, HeadRotations


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KernelWeight(QuantizedWeight):
    """A stack of quantised weights that fill lanes, `products.fits`.

    Attributes:
        layer: Which layer of the stack this weight is; None: all of them.
    """

    layer: Any = None

    def at_layer(self, layer: Int32[Array, ""]) -> Self:
        """Return one layer's weight or pair, without a copy."""
        return dataclasses.replace(self, layer=layer)

    def linear(self, x: Array, residual: Array | None = None, norm: FoldedNorm | None = None) -> Array:
        """Multiply in one pass."""
        return tpu_quantized_product(x, self, self.layer, residual, _epsilon(norm))

    def project(
        self, x: Array, heads: HeadShape, rotations: HeadRotations, bias: Array | None, norm: FoldedNorm | None
    ) -> tuple[Array, Array, Array] | None:
        """Project, normalise and rotate in one pass where that is faster."""
        if not projection.is_faster(heads, tpu_chip()):
            return None
        with jax.named_scope("qkv"):
            return projection.tpu_quantized_projection(x, self, self.layer, bias, heads, rotations, _epsilon(norm))

    def gated_linear(
        self, x: Array, bias: Array | None = None, norm: FoldedNorm | None = None, gate: Gate = "silu"
    ) -> Array:
        """Gate products in one pass; those with biases, for which the kernel has no place, are XLA's."""
        if bias is None:
            return tpu_quantized_product(x, self, self.layer, epsilon=_epsilon(norm), gate=gate)
        stack = QuantizedWeight(self.values, self.scales, self.block)
        return stack.at_layer(self.layer).gated_linear(x, bias, norm, gate)


def _epsilon(norm: FoldedNorm | None) -> float | None:
    return None if norm is None else norm.epsilon
