"""Names that stand in logs and in `dtdctl events`, and what each of them means.

They are an interface: people search for them and alert on them, so a name is never given a new
meaning.  docs/events.md is written from this, and a test holds it against the code.
"""

from __future__ import annotations

from typing import Final

EVENTS: Final = {
    # both daemons
    "library_log": "A library or Python itself logged a message.",
    "metrics_listening": "Prometheus can read figures at this address.",
    "metrics_open": "Figures are served beyond this host, to whoever can connect.",
    # the coordinator
    "coordinator_listening": "The coordinator has started and takes connections.",
    "coordinator_stopped": "The coordinator has ended in good order.",
    "authority_made": "The cluster's certificate authority was made, on the first start.",
    "local_name_unknown": "This host knows no user or group of that name, so it lets nobody in.",
    "connection_refused": "Somebody who called was turned away; the reason says why.",
    "token_created": "A token was made with which hosts or people can join.",
    "token_revoked": "A token was revoked: nobody can join with it any more.",
    "credential_issued": "Somebody has joined and got a credential.",
    "revocations_not_believed": "A worker remembers revocations that nobody here has signed.",
    "credential_renewed": "A certificate was renewed over the connection of its holder.",
    "authority_rotation": "The authority is being replaced, step by step; phase says which.",
    "own_credential_not_renewed": "The coordinator could not renew its own certificate.",
    "clock_doubted": "The host's clock has jumped; credentials do not follow it for an hour.",
    "credential_revoked": "A credential was taken back.",
    "audit": "Somebody asked for a change: who, what, and what came of it.",
    "audit_not_written": "The same, but the store did not take it: this line is all there is.",
    "internal_error_traceback": "What belongs to an `internal_error`, with the traceback.",
    "store_failed": "The coordinator could not write to its store or read it; training goes on.",
    "name_taken": "Two workers that both live go by one name; the later one is refused.",
    "worker_too_slow": "A worker does not read what it is sent; its connection is cut.",
    "package_unreadable": "A task's package could not be read from the coordinator's disk.",
    "checkpoint_not_deleted": "A worker could not delete a checkpoint; it tries again when it"
    " registers next.",
    "curves_failed": "Curves for TensorBoard could not be written; points are lost, nothing else.",
    # a worker
    "last_process_ended": "The last process of this worker ended in disorder: how, and its stack.",
    "worker_started": "The worker's process has started and its data port is open.",
    "worker_stopping": "The worker was told to stop and leaves at the next step boundary.",
    "worker_ends": "The worker's process ends, or replaces itself after a job.",
    "coordinator_connected": "The connection to the coordinator stands.",
    "coordinator_unreachable": "No coordinator answers, or it says no; the worker keeps calling.",
    "peer_unreachable": "Another worker's data port cannot be reached from here.",
    "coordinator_silent": "The coordinator has said nothing for too long; the connection is cut.",
    "coordinator_refused": "The coordinator gives this worker no work; the reason says why.",
    "coordinator_outdated": "This coordinator was replaced by a newer one; the worker leaves it.",
    "credential_expires_soon": "This host's credential expires soon; join again before it does.",
    "credential_not_renewed": "This host's credential was not renewed; it asks again.",
    "credential_taken_over": "This host's credential was renewed; new connections show it.",
    "epochs_not_saved": "The worker could not note which coordinator is the newest.",
    "revocations_damaged": "The worker cannot read what it remembers to have been revoked.",
    "revocations_not_kept": "The worker could not note what was revoked.",
    "epochs_unreadable": "The worker cannot read which coordinator was the newest.",
    "coordinator_lost": "The connection to the coordinator is gone; training goes on without it.",
    "signal_raised": "The operator had a signal sent to this process.",
    "job_prepared": "The worker warms up for a job.",
    "weights_received": "A file of weights that a job begins with was fetched.",
    "package_received": "The task's package has come from the coordinator.",
    "job_output": "The job's own code printed a line.",
    "memory_not_shared": "No directory for sockets, so neighbours on this host send everything.",
    "memory_not_borrowed": "A neighbour's memory cannot be read here; it sends everything.",
    "memory_not_lent": "This worker's memory could not be handed over; it sends everything.",
    "generation_assigned": "The worker is a member of a new generation.",
    "process_group_formed": "A generation's process group is made; its gradients travel there.",
    "state_received": "The state that a generation starts from has come from other workers.",
    "step_committed": "A step is committed: its loss and where its time went.",
    "evaluated": "An evaluation is complete.",
    "checkpoint_saved": "A checkpoint is complete on this worker's disk.",
    "training_failed": "The training thread has ended with an error.",
}
"""Events of the daemons' logs."""

INCIDENTS: Final = {
    "internal_error": "Something that was said, or what followed from it, failed within the"
    " coordinator; that connection is closed, and the traceback is in the log.",
    "core_begun_again": "After an error of its own the coordinator took up its jobs afresh, as one"
    " that is started again does.",
    "worker_registered": "A worker has called and is known now.",
    "worker_crashed": "A worker's new process says how its last one ended: its signal, or why.",
    "worker_refused": "A worker cannot take part in the job; the reason says what differs.",
    "worker_lost": "A worker is gone without having been let go, or was evicted as dead.",
    "worker_set_aside": "The job's code failed on a worker only; it is tried again later.",
    "worker_away": "The connection to a member is lost; while its ring goes on it is not evicted.",
    "worker_barred": "A worker is kept out of rings until it reaches its neighbours again.",
    "report_dropped": "What a worker said does not count: nobody had asked it for that.",
    "report_contradicted": "What a worker says of states cannot be, by the word of the others.",
    "report_false": "What a worker said cannot be true; its connection was closed.",
    "worker_signalled": "The operator had a signal sent to a worker.",
    "job_started": "A job begins to warm up.",
    "job_waiting": "A job waits; the message says what for.",
    "job_warming": "A job waits for workers that warm up.",
    "weights_left_out": "Weights of another job or of a file did not fit, and were left out.",
    "job_deleted": "The operator has deleted an ended job.",
    "checkpoint_deleted": "The operator has deleted an ended job's checkpoints of one step.",
    "branch_left": "A job goes on from an older state; newer checkpoints are kept.",
    "job_saving": "A job is to end; it does when what its workers hold is saved.",
    "state_discarded": "A job ended without its last steps: nobody could save them in time.",
    "copies_missing": "A job's last state is on fewer disks than its job file asks for.",
    "job_resumed": "The operator lets a job go on without those who are away.",
    "job_done": "A job has trained all its steps.",
    "job_failed": "A job has failed; the message says why.",
    "job_cancelled": "A job was cancelled.",
    "generation_forming": "A new ring is being formed.",
    "generation_running": "All members of a generation train.",
    "generation_ending": "A generation ends; the message says why.",
    "store_went_back": "A worker knows of a generation that the coordinator's store has lost.",
    "generation_adopted": "A coordinator that started again goes on with the running generation.",
    "recovered": "The job trains again: what happened, how long it took, what it cost.",
    "ring_broken": "A member's link to a neighbour broke.",
    "link_bad": "Two workers cannot reach each other; rings are ordered around the pair.",
    "link_good": "Two workers reach each other again.",
    "replicas_diverged": "A worker's state differs from that of the others.",
    "training_stalled": "A worker's training stands still; why it is not restarted is told.",
    "training_goes_on": "A worker whose training stood still gets on again.",
    "steps_lost": "Committed steps are gone with everybody who held them.",
    "share_exceeded": "A worker reports more than its share; what exceeds it was left out.",
    "rows_not_as_planned": "Other rows than the plan's went through the model in a step.",
    "epoch_order_kept": "The rest of an epoch keeps the order of the seed that it was begun with.",
    "buffers_put_back": "An evaluation changed the model's running buffers; they were put back.",
    "settings_ignored": "Settings of the job file have no effect beside the task's own methods.",
    "checkpoint_contradicted": "A worker says that it saved another state than all agreed on.",
    "checkpoint_failed": "A checkpoint could not be written; the next one is tried when it is due.",
    "checkpoint_left_out": "A checkpoint was not begun, because an earlier one is still written.",
    "row_retried": "Rows could not be read at first: the error of the last attempt that failed.",
    "loader_restarted": "A loader process ended, killed perhaps; its batch is loaded again.",
    "checkpoint_passed_over": "A checkpoint does not verify; an older one is taken.",
}
"""Kinds of incidents: in `dtdctl events`, and as events of the coordinator's log."""

NOTICES: Final = frozenset(
    {
        *("replicas_diverged", "weights_left_out", "rows_not_as_planned", "epoch_order_kept"),
        *("buffers_put_back", "settings_ignored", "checkpoint_failed", "checkpoint_left_out"),
        *("row_retried", "loader_restarted", "checkpoint_passed_over"),
    }
)
"""Kinds that a worker may report with NOTICE; all others are the coordinator's alone to say."""
