"""The process of a worker: its host, its state directory, its predecessor's end."""
