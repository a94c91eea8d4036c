"""Weights as they lie in files: GGUF and safetensors, memory-mapped and bounds-checked."""
