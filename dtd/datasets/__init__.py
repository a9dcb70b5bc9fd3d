"""Data of jobs on workers' disks: their manifests, the plan of a fetch, and the cache of copies."""
