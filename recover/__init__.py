"""gpu-recover: brings a GPU guest on Proxmox VE back from a hung inference server, proves it, and leaves a record."""

__version__ = "0.1.0"
