"""A user's own training loop as a job: `dtd.join` meets the engine at four points of it.

turns    two threads, of which one runs at a time
task     the loop as a task of the engine: the points at which the two meet
words    the engine's messages in words for a loop
run      `dtd.join`, `Run` and `Step`, in the user's thread
alone    trains a loop in its own process, without a coordinator
script   runs a script as the job of a worker
"""
