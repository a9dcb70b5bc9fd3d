"""Names of events in logs and in `dtdctl events`, with the meaning of each.

They are an interface: users search for them and alert on them, so the meaning of a name never
changes.  docs/events.md is generated from this file, and a test compares it with the code.
"""

from __future__ import annotations

from typing import Final

EVENTS: Final = {
    # both daemons
    "library_log": "A library, or Python itself, logged a message.",
    "metrics_listening": "Prometheus can read metrics at this address.",
    "metrics_open": "Metrics are served beyond this host, to anyone who can connect.",
    # the coordinator
    "web_listening": "The web page is served at this address.",
    "web_login": "Somebody has logged in to the web page.",
    "web_sessions_not_read": "The web page's sessions could not be read: people log in again.",
    "web_sessions_not_written": "The web page's sessions could not be written; a restart"
    " ends them.",
    "web_certificate_not_read": "The web page's certificate could not be read again; the one it has"
    " stays in use.",
    "coordinator_listening": "The coordinator has started and accepts connections.",
    "coordinator_stopped": "The coordinator has shut down cleanly.",
    "authority_made": "The cluster's certificate authority was created, on the first start.",
    "local_name_unknown": "This host has no such user or group, so the setting admits nobody.",
    "connection_refused": "A connection was refused, for the reason given.",
    "token_created": "A token was created with which hosts or people can join.",
    "token_revoked": "A token was revoked and can no longer be used to join.",
    "credential_issued": "A host or person has joined and received a credential.",
    "credential_renewed": "A certificate was renewed over its holder's connection.",
    "own_credential_not_renewed": "The coordinator could not renew its own certificate.",
    "clock_doubted": "The host's clock has jumped; for an hour credentials are not judged by it.",
    "credential_revoked": "A credential was revoked.",
    "audit": "A request that changes something: the caller, the request and its result.",
    "audit_not_written": "As `audit`, but the log could not be written: this line is the only"
    " record.",
    "internal_error_traceback": "The traceback of an `internal_error`.",
    "store_failed": "The coordinator could not write to its store or read it; training goes on.",
    "name_taken": "Two living workers use the same name; the second is refused.",
    "worker_too_slow": "A worker does not read what is sent to it; its connection is closed.",
    "package_unreadable": "A task's package could not be read from the coordinator's disk.",
    "model_pinned": "A worker keeps a copy of a registered model's version.",
    "model_not_pinned": "A worker could not make a copy of a registered model's version.",
    "model_dropped": "A worker has deleted its copy of a registered model's version.",
    "model_not_deleted": "A worker could not delete its copy of a version; it stays on its disk.",
    "model_source": "A source that failed, or a merge, while a worker copied a model.",
    "checkpoint_not_deleted": "A worker could not delete a checkpoint; it tries again when it"
    " registers next.",
    "curves_failed": "TensorBoard curves could not be written; only those points are lost.",
    # a worker
    "last_process_ended": "This worker's previous process ended abnormally: how, and with which"
    " stack.",
    "worker_started": "The worker's process has started and its data port is open.",
    "worker_stopping": "The worker was asked to stop and leaves at the next step boundary.",
    "stands_by": "The command of `drain_when` asks this worker to stay away; the reason is its.",
    "drain_command_failed": "The command of `drain_when` could not be run or did not end; it counts"
    " as one that asks for nothing.",
    "worker_failed": "The worker's own code raised what nobody expected; its process ends, and the"
    " unit starts another.",
    "worker_ends": "The worker's process exits, or replaces itself after a job.",
    "process_not_restored": "A job has changed parts of the worker's process that cannot be"
    " restored; the process ends, and its supervisor starts another.",
    "coordinator_connected": "The coordinator has registered the worker.",
    "coordinator_unreachable": "No coordinator answers; the worker keeps trying.",
    "registration_refused": "The coordinator refuses this worker, for instance because another one"
    " has its name; it asks again, ever less often.",
    "peer_unreachable": "Another worker's data port cannot be reached from here.",
    "coordinator_silent": "The coordinator has been silent for too long; the connection is closed.",
    "coordinator_refused": "The coordinator does not accept this worker, for the reason given.",
    "credential_expires_soon": "This host's credential expires soon; join again before that.",
    "renewed_credential_ignored": "A file with a renewed certificate does not renew this host's"
    " credential; the log names it.",
    "credential_not_renewed": "This host's credential was not renewed; the worker asks again.",
    "credential_taken_over": "This host's credential was renewed; new connections use it.",
    "coordinator_lost": "The connection to the coordinator was lost; training continues without"
    " it.",
    "signal_raised": "An operator's request sent a signal to this process.",
    "job_prepared": "The worker has started to warm up for a job.",
    "weights_received": "The weights file with which a job starts was fetched.",
    "data_offered": "Data of the job are here and hashed; other workers may copy them.",
    "data_received": "Data of the job were copied from the named workers, and verified.",
    "data_source_lost": "A worker did not deliver data of the job; others are asked.",
    "package_received": "The task's package was received from the coordinator.",
    "environment_made": "The packages that a job requires were installed.",
    "script_started": "A script that does not join was started for a new generation.",
    "job_output": "The job's own code printed a line.",
    "memory_not_shared": "There is no directory for sockets, so neighbours on this host send all"
    " elements.",
    "memory_not_mapped": "A neighbour's memory cannot be read here; it sends all elements instead.",
    "memory_not_offered": "This worker's memory cannot be offered; it sends all elements instead.",
    "generation_assigned": "The worker is a member of a new generation.",
    "process_group_formed": "A generation's process group was created; its gradients travel"
    " through it.",
    "state_received": "The state from which a generation starts was received from other workers.",
    "step_committed": "A step is committed: its loss and where its time went.",
    "evaluated": "An evaluation is complete.",
    "checkpoint_assembled": "The parts of the checkpoint that a job starts from were put together.",
    "parts_differ": "Parts of a checkpoint contradict each other; others are tried.",
    "part_not_fetched": "A worker did not deliver its part of a checkpoint; others are asked.",
    "checkpoint_saved": "A checkpoint is complete on this worker's disk.",
    "profile_asked": "An operator has the next steps recorded (`dtdctl profile`).",
    "memory_measured": "The memory of each part of the training, in an early step of a generation.",
    "training_failed": "The training thread has ended with an error.",
}
"""Events of the daemons' logs."""

INCIDENTS: Final = {
    "internal_error": "Handling a message failed because of an error in the coordinator; that"
    " connection is closed, and the traceback is in the log.",
    "core_begun_again": "After an internal error the coordinator reloaded its jobs from the store,"
    " as after a restart.",
    "worker_registered": "A worker has registered.",
    "worker_crashed": "A worker's new process reports how the previous one ended.",
    "instructions_lowered": "A job computes its updates with fewer processor instructions than some"
    " of its workers have, because another one has no more.",
    "worker_refused": "A worker cannot take part in the job; the reason says what differs.",
    "worker_moves": "A worker leaves its job at a step boundary, because another job gets it.",
    "worker_lost": "A worker disappeared without having been released, or was evicted as dead.",
    "worker_set_aside": "The job's code failed on one worker only, or since it joined, or it joined"
    " and cannot take part; that worker is tried again later.",
    "worker_away": "The connection to a member was lost; it is not evicted while its ring makes"
    " progress.",
    "worker_barred": "A worker is left out of rings until it can reach its neighbours again.",
    "worker_signalled": "An operator sent a signal to a worker.",
    "job_started": "A job has begun to warm up.",
    "job_waiting": "A job is waiting; the message says for what.",
    "job_warming": "A job is waiting for workers that are warming up.",
    "weights_left_out": "Weights of another job or of a file did not fit, and were left out.",
    "weights_renamed": "Weights of another job or of a file have names with another prefix than the"
    " model's, and were taken over.",
    "shares_changed": "Rows of a step are divided anew among the workers, by their speed.",
    "shares_unused": "The division of rows that a job asks for has no effect with these workers.",
    "model_registered": "A checkpoint was registered as a version of a model.",
    "model_copied": "A worker has made a copy of a registered model's version.",
    "models_unknown": "A worker keeps models that are not registered, for example since an older"
    " backup was restored; their files stay on it.",
    "model_deleted": "An operator deleted a version of a model; workers delete their copies.",
    "job_deleted": "An operator has deleted an ended job.",
    "checkpoint_deleted": "An operator has deleted an ended job's checkpoints of one step.",
    "branch_left": "A job continues from an older state; newer checkpoints are kept.",
    "job_saving": "A job ends as soon as the state that its workers hold is saved.",
    "state_discarded": "A job ended without its last steps: no worker could save them in time.",
    "copies_missing": "A job's last state is on fewer disks than its job file asks for.",
    "job_resumed": "An operator lets a job continue without its absent workers.",
    "sweep_ended": "A sweep is done or was cancelled; with its best trial, if one was completed.",
    "sweep_failed": "A sweep has failed, for the reason given.",
    "job_done": "A job has trained all its steps.",
    "job_failed": "A job has failed, for the reason given.",
    "job_cancelled": "A job was cancelled.",
    "generation_forming": "A new ring is being formed.",
    "generation_running": "All members of a generation are training.",
    "generation_ending": "A generation is ending, for the reason given.",
    "store_went_back": "A worker knows of a generation that the coordinator's store has lost.",
    "generation_adopted": "A restarted coordinator has resumed control of the running generation.",
    "recovered": "The job is training again: what happened, how long it took, and what it cost.",
    "ring_broken": "A member's link to a neighbour broke, not merely because the generation ends.",
    "link_bad": "Two workers cannot reach each other; rings are ordered so that they are not"
    " neighbours.",
    "link_good": "Two workers can reach each other again.",
    "replicas_diverged": "A worker's state differs from that of the others.",
    "training_stalled": "A worker's training has stalled; the message says why it is not"
    " restarted.",
    "training_goes_on": "A worker whose training had stalled makes progress again.",
    "steps_lost": "Committed steps were lost with all workers that held them.",
    "shards_missing": "No present worker has some shards of the newest state; the job falls back.",
    "metrics_stopped": "Figures of jobs are not stored any more, because the disk fails; training"
    " continues.",
    "metrics_resumed": "Figures of jobs are stored again; the message says how many were dropped.",
    "metrics_set_aside": "The store of figures could not be used; it was renamed and replaced.",
    "tracking_failed": "Figures of jobs do not reach MLflow or W&B; training continues.",
    "tracking_resumed": "Figures reach it again; the message says how many entries were dropped.",
    "share_exceeded": "A worker reported more than its quota; the excess was dropped.",
    "rows_not_as_planned": "The rows that went through the model in a step are not the planned"
    " ones.",
    "epoch_order_kept": "The rest of an epoch keeps the order of the seed with which it began.",
    "buffers_put_back": "An evaluation changed the model's running buffers; they were restored.",
    "settings_ignored": "Settings of the job file have no effect because of the task's own"
    " methods.",
    "task_doubtful": "Something in a task is allowed, and hardly what its author means; the message"
    " names it.",
    "nothing_trained": "A job has trained all its steps, and each of them was skipped because its"
    " gradients were not finite: the weights are the initial ones.",
    "checkpoint_contradicted": "A worker reports a saved state that differs from the one agreed"
    " on.",
    "checkpoint_failed": "A checkpoint could not be written; the next one is tried when it is due.",
    "checkpoint_left_out": "A checkpoint was skipped because the previous one is still being"
    " written.",
    "data_copied": "A worker has copied data of the job from the named workers.",
    "checkpoint_waited_for": "Training waits while a checkpoint is written, because a copy of the"
    " state does not fit into memory.",
    "row_retried": "Rows could be read only after retries; the message has the last error.",
    "loader_restarted": "A loader process ended, possibly killed; its batch is loaded again.",
    "checkpoint_passed_over": "A checkpoint does not verify, or lacks parts; an older one is used.",
}
"""Kinds of incidents: in `dtdctl events`, and as events of the coordinator's log."""

NOTICES: Final = frozenset(
    {
        *("replicas_diverged", "weights_left_out", "rows_not_as_planned", "epoch_order_kept"),
        *("buffers_put_back", "settings_ignored", "checkpoint_failed", "checkpoint_left_out"),
        *("row_retried", "loader_restarted", "checkpoint_passed_over", "checkpoint_waited_for"),
        *("task_doubtful", "nothing_trained", "weights_renamed"),
        *("shares_changed", "shares_unused", "data_copied"),
    }
)
"""Kinds that a worker may report with NOTICE; only the coordinator reports all others."""
