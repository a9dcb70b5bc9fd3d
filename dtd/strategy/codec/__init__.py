"""Codecs: how gradients are encoded for sending, one file each."""
