"""The fake NVIDIA driver: a state file, two C libraries and an `nvidia-smi` that all tell the same story."""
