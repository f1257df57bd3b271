// RMS norms, RoPE and the split into queries, keys and values, in bfloat16.
// The contracts are those of mis_kernels.backends.native.calls.

#include "bfloat16.h"
#include "glue.h"

XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_rms_norm, mis::rms_norm<mis::Bfloat16>, mis::rms_norm_binding<mis::Bfloat16>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(mis_norm_rope, mis::norm_rope<mis::Bfloat16>, mis::norm_rope_binding<mis::Bfloat16>());
