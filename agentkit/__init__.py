"""agentkit: reinforcement learning of LoRA adapters inside real coding-agent harnesses.

The notebooks call into this package; each module docstring says which layer it belongs to.
Importing ``agentkit`` alone loads nothing heavy (no torch, vllm, docker or matplotlib).
"""

__version__ = "0.1.0"
