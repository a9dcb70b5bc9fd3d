"""Membership: which workers train together, on what, in which generation, from which state.

    pools       several jobs at once: a machine each, and `allocation` of workers to them
    machine     the coordinator's side: passes events to the rules below, explains what it waits for
    member      a worker's side, with its events and effects in `member_events`
    transitions the states, and four tables of the transitions between them
    state       what the coordinator knows, in small records (`state_records`, `records`)
    events      the coordinator's events and effects

A worker registers (`registration`, `reconnection`), is compared with the others and released again
(`admission`, `isolation`).  A generation waits (`waiting`), is chosen and announced (`roster`,
`forming`), runs (`running`), and ends (`ending`, `suspicion`, `standstill`).  Abandoned states are
recorded (`branches`, `divergence`).  A job begins and ends (`jobs`, `saving`).  `outbox` orders the
effects for the shell.
"""
