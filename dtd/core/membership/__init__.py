"""Membership: which workers train together, on what, in which generation, from which state.

    machine     the coordinator's side: gives events to the rules below, says what it waits for
    member      a worker's side, with its events and effects in `member_events`
    transitions the states, and four tables of which event leads from which to which
    state       what the coordinator knows, in small records (`state_records`, `records`)
    events      what happens to the coordinator, and what it answers

A worker comes (`registration`, `reconnection`), is compared with the others and let go again
(`admission`, `isolation`).  A generation waits (`waiting`), is chosen and told (`roster`,
`forming`), runs (`running`), and ends (`ending`, `suspicion`, `standstill`).  What is not built on
any more is remembered (`branches`, `divergence`).  A job begins and ends (`jobs`, `saving`).
`outbox` orders what the shell does.
"""
