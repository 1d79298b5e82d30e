"""What each kind of evidence and of limit says, and which figures it has: `kair schema` prints it next to the kind."""

from collections.abc import Mapping
from typing import Final

from kair_engine.results.sensitivity import ReasonKind
from kair_engine.results.triage import EvidenceKind, OpenKind

EVIDENCE_KINDS: Final[Mapping[EvidenceKind, str]] = {
    "excess": (
        "More of its self time than the role's median, or than the others of the role, where half of it is slow. "
        "About: class of time. Figures: excess_us_per_step, share_of_step, perhaps others_of_role."
    ),
    "slow_operator": (
        "More time in one operator than the role's median. About: operator. Figures: excess_us_per_step, share_of_step."
    ),
    "large_delays": "How many of all large delays fell on it. About: class of time. Figures: delays, of_all, steps.",
    "periodic": "Its large delays come every so many steps. Figures: every, events.",
    "host_pauses": (
        "How many of all host pauses fell on it, in one or two steps. About: class of time. Figures: delays, of_all, "
        "steps."
    ),
    "came_last": "Who waited for it. Figures: arrived_last, collectives, waited_us, share_of_waiting.",
    "made_late": "The root causes of its lateness. Figures: blamed_us.",
    "operator_behind": "The operator that cost most, where blame found none. About: operator.",
    "slow_link": "A link against its siblings. About: link. Figures: self_us, expected_us, siblings, share_of_step.",
    "links_in_common": "Slow links that share these ranks. Figures: links.",
    "group_not_rank": "Why a process group is named, and no rank in it.",
    "uneven_stages": (
        "A stage against the mean of the stages. About: the slowest stage. Figures: self_us, mean_us, stages, "
        "share_of_step."
    ),
    "uneven_batches": "Forward and backward vary together. Figures: correlation, variation.",
    "longest_batch": "What waiting for it costs. Figures: share_of_step.",
    "delays_on_changing_ranks": (
        "Delays that no rank has more often than chance. About: cause. Figures: delays, ranks, hit_steps, steps."
    ),
    "longest_delays": "What the longest of each step costs. Figures: share_of_step.",
    "uneven_positions": (
        "What ranks at each position of a process group spend on an operator or a family of kernels, else on all of "
        "their own work. About: that; process group. Figures: one for each position, in µs per step; share_of_step."
    ),
    "longest_changes": "Another rank has most work each time. Figures: ranks, steps, of_steps, share_of_step.",
    "at_step_end": "Idle after a step's last operation, until it ends. Figures: after_us_per_step, peers_us.",
    "all_pause": "All ranks pause in the same steps. Figures: delays, every, of_steps, share_of_step.",
    "host_stops": (
        "Threads stand still in the middle of operations; together is 1 where ranks do so at moments of their own, "
        "more where they do so together. Figures: per_step, median_us, longest_us, share_of_step, slowest_rank_us, "
        "together."
    ),
    "ticks": (
        "Operations end with the scheduler's ticks: their threads wait for others that have no core; what is as long "
        "as a tick is so much of the mean rank's step. Figures: tick_us, share_of_step."
    ),
    "no_core": (
        "Measured by the kernel: how long threads that train (with a GPU, of all ranks: or those that communicate, "
        "whichever lacked one for longer) were ready and had no core: of the mean rank, the least and the most; or "
        "of these ranks next to their peers, in the hit_steps steps of an intermittent finding. Figures: of all ranks "
        "ready_us_per_step, step_us, least_us, most_us; of some ready_us_per_step, peers_least_us, peers_most_us, "
        "perhaps hit_steps."
    ),
    "throttled": (
        "How often a quota of CPU time stopped the mean rank's process; or theirs, next to their median peer's. "
        "Figures: per_step; of some ranks peers_per_step, too."
    ),
    "halted": (
        "How often a signal (SIGSTOP) stopped the mean rank's process; or theirs, next to their median peer's. "
        "Figures: per_step; of some ranks peers_per_step, too."
    ),
    "lower_priority": "Its nice level, next to its median peer's. Figures: nice, peers_nice.",
    "smaller_quota": (
        "Its quota of CPU time, in cores; its median peer's, if that has one. Figures: cores, perhaps peers_cores."
    ),
    "fewer_cores": "How many cores it may run on, next to its median peer. Figures: cores, peers_cores.",
    "crowded": "These ranks of one host may only run on the same cores, fewer than they are. Figures: ranks, cores.",
    "own_threads": (
        "Ranks lack cores mostly for threads of their own: CPU time of the mean rank's threads besides the training "
        "one; how much of its cores the ranks of the fullest host use. Figures: helpers_us_per_step, used_share, "
        "cores, ranks."
    ),
    "slow_network": (
        "Measured by the kernel: what its host sends to other hosts (or receives, where receives is 1), how fast "
        "that is delivered, next to what others send; how long it takes in a step; TCP segments that are sent again; "
        "for how long it waits in queues on its way, where that is known. Figures: bytes_per_step, bytes_per_s, "
        "usual_bytes_per_s, delivering_us_per_step, retransmitted_per_step, receives, queued_us."
    ),
    "network": (
        "Measured by the kernel, where all hosts are as slow: what the host sends another whose transfers take "
        "longest, how fast that is delivered and how long it takes in a step; the fastest transfers; segments that "
        "are sent again; for how long what is sent waits in queues, where that is known. About: both hosts. Figures: "
        "bytes_per_step, bytes_per_s, fastest_bytes_per_s, delivering_us_per_step, retransmitted_per_step, queued_us."
    ),
    "computes_more": (
        "Measured by the kernel: how long its thread computed, next to its peers', in the hit_steps steps of an "
        "intermittent finding. Figures: computed_us_per_step, peers_least_us, peers_most_us, perhaps hit_steps."
    ),
    "asleep": (
        "Measured by the kernel: how long its thread neither computed nor was ready to, though it waited for nobody, "
        "next to its peers'. Figures: asleep_us_per_step, peers_least_us, peers_most_us."
    ),
    "more_calls": (
        "It runs this oftener than its peers. About: operator. Figures: calls, usual_calls, excess_us_per_step."
    ),
    "launches_more": (
        "It runs an operator that launches work oftener than its peers, and how much longer its device idles for it. "
        "About: operator. Figures: calls, usual_calls, excess_us_per_step."
    ),
    "slower_launches": (
        "How long its device idles between launches that follow one another, next to its peers'. Figures: "
        "idle_us_per_step, peers_us_per_step."
    ),
    "in_calls": (
        "How long its device idles while its host compiles or allocates memory, next to its peers' (without a device, "
        "how long its thread does). About: cause. Figures: idle_us_per_step; of some ranks peers_us_per_step, too."
    ),
    "unmarked_input": (
        "How long it is idle in the median step where a batch is fetched, next to its peers. Figures: "
        "idle_us_per_step, peers_us_per_step."
    ),
    "longer_batches": (
        "Its passes take longer than its peers', its optimizer does not. Figures: passes_share, optimizer_share."
    ),
    "larger_inputs": (
        "By how much more it is given, and what that costs; the dimension that differs most (axis of its tensor, "
        "from 0) in the mean of the calls, its peers', and what a unit of it takes (of rows: a token, a sample). "
        "About: operator. Figures: larger_share, excess_us_per_step; per_call, usual_per_call, least_per_call, "
        "most_per_call, us_per_unit, usual_us_per_unit, tensor, axis."
    ),
    "larger_batch": (
        "What it gives its model in a step, and its median peer; by what share that is more. Figures: given_bytes, "
        "usual_given_bytes, larger_share."
    ),
    "sample_time": (
        "How many samples the job gives it in a step, and its median peer; what one takes in the median step. "
        "Figures: samples, usual_samples, us_per_sample, usual_us_per_sample."
    ),
    "same_inputs": "What it spends longer on inputs as large as its peers'. Figures: excess_us_per_step.",
    "whole_device": (
        "It computes longer than its peers by the same ratio in nearly all kernels: of the mean step, and of the "
        "kernels with least and most of it. Figures: ratio, least_ratio, most_ratio, kernels (so many tell it), peers "
        "(of its role)."
    ),
    "device_models": (
        "The same, where all of its ranks and none of its peers have another model of device. About: the models. "
        "Figures: as of whole_device."
    ),
    "one_family": (
        "It is slower in one family of kernels (attention, experts, lookups, selections, matrix_products, copies, or "
        "all that arithmetic or memory bounds), and takes as long as its peers, or nearly, for all others, which are "
        "so much of what it computes. About: family. Figures: "
        "excess_us_per_step, ratio, others_ratio, others_share."
    ),
    "one_kernel": "The same of a single kernel. About: operator. Figures: as of one_family.",
    "stopped": (
        "Its threads stand still in the middle of operations (and between them, where between is 1), next to its "
        "peers'. Figures: stopped_us_per_step, peers_us_per_step, perhaps between."
    ),
    "profiler": (
        "How long the profiler's own work holds up launches: of the median rank, or theirs next to their peers'. "
        "Figures: held_us_per_step; of some ranks peers_us_per_step, too."
    ),
    "device_idle": "How long the median rank's device waits for its host to launch. Figures: idle_us, share_of_step.",
    "one_by_one": (
        "How long the median rank's device idles between launches that follow one another. Figures: idle_us, "
        "share_of_step."
    ),
    "device_taken": (
        "How long what is launched waits for a device that runs nothing of its rank. Figures: waited_us, share_of_step."
    ),
    "price_range": (
        "The least and the most that a step would be shorter by; of a slow network one is the replay's, the other "
        "how long its transfers take. About: perhaps network. Figures: least_us, most_us."
    ),
    "exposed": (
        "Of one rank alone: communication that no compute hides, waiting included. Figures: exposed_us, share_of_step."
    ),
    "since": (
        "What it had more than its peers before the step of its onset, and from then on. Figures: before_us, "
        "after_us, step."
    ),
    "than_before": (
        "What a link, or ranks, take in the steps in which they are slow, and in the others. About: the link, or the "
        "part of the step. Figures: after_us, before_us, of_steps, step, steps, until."
    ),
    "queued_behind": "Transfers next to a slow link that are slow in one direction only. About: them. No figures.",
    "while_slow": (
        "What a step costs in which it is slow, by a replay with what it took in the others. Figures: lost_us, "
        "of_steps, steps."
    ),
    "rank_by_order": (
        "Which file it is: files do not say their ranks, and are numbered in the order of their names. About: the file."
    ),
    "replayed": (
        "The step with and without the finding, of its ranks; how far off that is at most in 95 of 100 samples; "
        "whether that is with the other findings fixed. About: cause. Figures: before_us, after_us; of a sample of "
        "the steps replayed_steps, steps, plus_minus_us, of the ranks replayed_ranks, ranks; others_fixed."
    ),
    "others_nearly_as_late": "Why the price is little. Figures: saved_together_us where there are several findings.",
    "estimated": "The step with and without the finding, where no replay can tell. Figures: before_us, after_us.",
    "not_arrived": (
        "Of a hang: who has not called it, and how many wait in it. About: collective and process group. Figures: "
        "sequence, waiting, members."
    ),
    "no_dump": "Members that left no dump. About: collective and process group. Figures: sequence, waiting, members.",
    "other_call": (
        "Who called something else under that number. About: both operations and the process group. Figures: "
        "sequence, others."
    ),
    "all_arrived": (
        "All members are in it, and none leaves it. About: collective and process group. Figures: sequence, members."
    ),
    "last_completed": "The last one of that group that all were through with. About: collective. Figures: sequence.",
    "waits_elsewhere": "Who waits in another process group meanwhile, which the others call later.",
    "held_up": (
        "Who has not called it either, since it waits itself. About: collective and process group. Figures: "
        "sequence, waiting, members."
    ),
    "in_no_call": (
        "Who is waited for and waits for nothing. About: what it called last, and at where in the program. Figures: "
        "perhaps sequence."
    ),
    "called_at": "Where in the program ranks made a call. About: file, line and function. Figures: perhaps sequence.",
    "waits_for": (
        "Who waits in a transfer, and its other end (−1 where that is unknown). About: send or recv and process "
        "group. Figures: peer, perhaps sequence."
    ),
    "wait_circle": "Ranks that wait for each other.",
    "transfers_met": "Ranks that are in sends and receives which answer each other.",
    "no_majority": "Members called different things, none of them more than half. Figures: sequence, members.",
    "called": "Of these: who called what. About: what, and the process group. Figures: sequence.",
    "no_report": (
        "As no_dump, of a log: ranks that reported no time-out. About: collective and process group. Figures: "
        "sequence, waiting, members."
    ),
    "unreachable": "Ranks whose process did not answer NCCL's RAS.",
    "died": (
        "How a rank's process ended, otherwise than in order: neither signal nor exit_status where nobody saw it; "
        "out_of_memory is 1 where the kernel's count of such kills rose. About: its exception. Figures: perhaps step, "
        "signal, exit_status, out_of_memory."
    ),
    "ended_early": "A rank ended in order, and others wait for it. Figures: perhaps step.",
    "unheard": "A rank is on a host that is not heard. About: the host. Figures: perhaps step.",
    "stands_at": (
        "Where ranks of a job that stands still are, by their stacks; was is 1 of one that died there. About: the "
        "place. Figures: perhaps step, was."
    ),
    "every_step": (
        "By the history of steps, sampled or not, it takes longer by itself than its peers, beyond what it did before. "
        "About: part of the step, perhaps. Figures: steps, excess_us_per_step, share_of_step."
    ),
    "collects_garbage": (
        "By the history of steps it collects garbage for longer than its peers. Figures: collected_us_per_step, "
        "peers_least_us, peers_most_us."
    ),
    "noticed": "While the job ran, the watch noticed it. Figures: step.",
}
"""What speaks for a finding; `about` is what `about` holds, where it holds anything."""

REASON_KINDS: Final[Mapping[ReasonKind, str]] = {
    "one_rank": "There is no peer.",
    "few_steps": "So few steps do not separate a slow rank from a slow moment. Figures: steps, fewest_steps.",
    "no_compute": "No compute operations were recorded.",
    "no_operator": "None in which ranks differ by as much. Figures: differing_share_of_step.",
    "no_input": "No input fetches were recorded.",
    "no_siblings": "No link has as many. Figures: siblings.",
    "more_steps": (
        "With so many steps this much is found. Figures: steps, recorded_steps, and share_of_step; of stalls "
        "stalled_steps, recorded_stalled_steps."
    ),
    "smallest_reported": (
        "It is found almost as soon as it is reported at all. Figures: share_of_step; of a link also "
        "share_of_self_time."
    ),
    "no_peer": "Most ranks are alone in their role.",
    "one_peer": "The only peer could as well be the fast one.",
    "too_different": "It is found at no size.",
    "spread_unknown": "How much so many healthy ranks differ is little known. Figures: healthy.",
    "spread": "Ranks differ for good. Figures: spread_us, share_of_step.",
}
"""What keeps a smaller fault from being found."""

OPEN_KINDS: Final[Mapping[OpenKind, str]] = {
    "unrecorded": "Ranks that left no trace are waited for: `us_per_step` is the least that they cost.",
    "unmatched": "Collectives were not matched across ranks: who waits in them is unknown.",
    "event": "A few steps took much longer, too few to accuse anybody. `took_us` and `usual_us` say how long.",
    "uneven": "Work differs from rank to rank or from step to step, on nobody in particular.",
    "waiting": "Ranks are waited for, and no test sets them apart; or a replay does not confirm one (`replayed_us`).",
    "changed": "Steps take longer from one step on. `took_us` and `usual_us` say how long after it and before it.",
    "idle": "Nothing was recorded for this time.",
    "groups_differ": "One group is slower than its siblings, or one half than the other: which is usual is unknown.",
    "no_peer": "Ranks that were not compared with peers; the whole step where none has a peer.",
    "few_steps": "Ranks that were slower in all of too few steps for a test; the whole step where none can be tested.",
}
