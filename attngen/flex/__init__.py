"""Kernels from FlexAttention's functions: `nodes` is what they compute, `operations` what PyTorch's become, `tracing`
calls them, `spec` writes the .attn text, and `call` compiles it."""
