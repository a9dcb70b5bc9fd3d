"""Membership: which workers train together, on what, in which generation, from which state.

several_jobs    a cluster state for each job, and the allocation of workers to them
machine         the coordinator's side: an event and the state go to the rules below
workers         they register and leave, and are judged: silent, stuck, at fault, unreachable
generation      waited for, chosen and announced, ended, its state saved
jobs, run       a job begins and ends; its course, with its setbacks
member          a worker's side, with its events and effects
transitions     the states, and four tables of the transitions between them
state, records  what the coordinator knows
events          the coordinator's events and effects, and their order
status          what an operator sees of all this
"""
