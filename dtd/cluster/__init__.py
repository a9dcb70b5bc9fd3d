"""Membership: which workers train together, on what, in which generation, from which state.

    pools       several jobs at once: a cluster state each, and the allocation of workers to them
    machine     the coordinator's side: an event and the state go to the rules below
    member      a worker's side, with its events and effects
    transitions the states, and four tables of the transitions between them
    state       what the coordinator knows, in small records (`records`)
    events      the coordinator's events and effects, and their order

A worker registers (`registration`), is compared with the others and released again (`admission`,
`isolation`).  A generation waits (`waiting`), is chosen and announced (`roster`, `forming`), runs,
and ends (`ending`, `suspicion`, `digests`).  `status` is what an operator sees of all this.
Abandoned states are recorded (`branches`).  A job begins and ends (`jobs`, `saving`).
"""
