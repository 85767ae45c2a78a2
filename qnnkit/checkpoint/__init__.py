"""Write, verify, keep, mirror and restore what a run must not lose."""

from qnnkit.checkpoint.file import checksum, keep_as, load_checkpoint, save_checkpoint

__all__ = ["checksum", "keep_as", "load_checkpoint", "save_checkpoint"]
