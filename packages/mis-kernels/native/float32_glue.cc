// RMS norms, RoPE and the split into queries, keys and values, in float32.
// The contracts are those of mis_kernels.backends.native.calls.

#include "float32.h"
#include "glue.h"

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_float32_rms_norm, mis::rms_norm<mis::Float32>, mis::rms_norm_binding<mis::Float32>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_float32_norm_rope, mis::norm_rope<mis::Float32>, mis::norm_rope_binding<mis::Float32>());
