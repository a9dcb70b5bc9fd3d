"""The code of a task as one archive: found, packed, named by its hash, and unpacked again.

Files and bytes only: nothing here imports a task, speaks the protocol or runs an event loop.  A
package is addressed by the sha256 of its archive, so a receiver can tell whether it is
whole before looking inside.
"""
