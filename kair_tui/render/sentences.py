"""Sentences of evidence: one for each kind, made from its figures."""

from collections.abc import Callable, Mapping
from typing import Final

from kair_engine.causes import CAUSES
from kair_engine.results.blame import STEP_BEGIN, STEP_END, RootCause
from kair_engine.results.triage import Evidence
from kair_tui.render import delays as devices
from kair_tui.render import hangs, within_rank
from kair_tui.render.delays import cores_in_words, halted_in_words, stops_in_words, throttled_in_words, ticks_in_words
from kair_tui.render.text import short_name
from kair_tui.render.units import (
    count,
    duration,
    durations,
    its,
    percent,
    plural,
    ranks_in_words,
    significant,
    size,
    them,
)

_CAUSES_TOLD = 2
"""What made a rank late fills no paragraph: the command beside the sentence shows the rest."""


def sentence_of(evidence: Evidence) -> str:
    """What the evidence says."""
    return _SENTENCES[evidence.kind](evidence)


def _excess(one: Evidence) -> str:
    others = int(one.figures.get("others_of_role", 0))
    theirs = its(one.ranks)
    than = f"{theirs} role's median"
    if others:
        than = f"the other {'rank' if others == 1 else f'{count(others)} ranks'} of {theirs} role"
    spends = CAUSES[one.about or "unknown"].spends_on.format(their=theirs)
    if len(one.ranks) == 1:
        return f"{_who(one)} spends {_cost(one)} more on {spends} than {than}"
    return f"{_who(one)} each spend {_cost(one)} more on {spends} than {than}, in the mean"


def _slow_operator(one: Evidence) -> str:
    return (
        f"{_who(one)} {_verb(one, 'spend')} {_cost(one)} more in {_operator(one)} than {its(one.ranks)} role's median"
    )


def _large_delays(one: Evidence) -> str:
    what = f"{_number(one, 'of_all')} large delays"
    if one.kind == "host_pauses":
        what = f"{_number(one, 'of_all')} host pauses between collectives in its role"
    through = CAUSES[one.about or "unknown"].spends_on.format(their=its(one.ranks))
    steps = plural(int(one.figures["steps"]), "step")
    return f"{_who(one)} had {_number(one, 'delays')} of the {what} in {steps}, through {through}"


def _periodic(one: Evidence) -> str:
    events, every = _number(one, "events"), _number(one, "every")
    return f"{_who(one)}'s {events} large delays come at equal distances, every {every} steps"


def _came_last(one: Evidence) -> str:
    of_all = plural(int(one.figures["collectives"]), "collective")
    waited = f"{duration(one.figures['waited_us'])} in total"
    share = percent(one.figures["share_of_waiting"])
    return (
        f"{_who(one)} came last to {_number(one, 'arrived_last')} of {of_all}; peers waited {waited} for "
        f"{them(one.ranks)}, {share} of all waiting"
    )


def _made_late(one: Evidence) -> str:
    alone = len(one.ranks) == 1
    listed = "; ".join(
        f"{_place(cause, alone)} ({duration(cause.blamed_us)} over {plural(cause.synchronisations, 'collective')})"
        for cause in one.root_causes[:_CAUSES_TOLD]
    )
    others = "; and lesser ones" if len(one.root_causes) > _CAUSES_TOLD else ""
    return f"what made {them(one.ranks)} late: {listed}{others}"


def _operator_behind(one: Evidence) -> str:
    return f"the operator behind it: {_operator(one)}"


def _slow_link(one: Evidence) -> str:
    what = f"collectives of {one.about} take" if str(one.about).startswith("process group") else f"{one.about} takes"
    siblings, expected = plural(int(one.figures["siblings"]), "sibling"), duration(one.figures["expected_us"])
    return (
        f"{what} {duration(one.figures['self_us'])} a step, waiting excluded; the {siblings} {expected} (median): "
        f"{_share(one)} of the step more"
    )


def _links_in_common(one: Evidence) -> str:
    return f"{_number(one, 'links')} slow links have {_who(one)} in common"


def _group_not_rank(_: Evidence) -> str:
    return "all members of a ring see the same duration, so this names the group and no rank in it"


def _uneven_stages(one: Evidence) -> str:
    own, mean = one.figures["self_us"], one.figures["mean_us"]
    others = f"the {_number(one, 'stages')} stages {duration(mean)} in the mean ({own / mean:.2f} times that)"
    return f"{one.about} computes {duration(own)} a step, {others}: {_share(one)} of the step more"


def _uneven_batches(one: Evidence) -> str:
    return (
        "within a rank, forward and backward time vary together over the steps (correlation "
        f"{one.figures['correlation']:.2f}, median of ranks; forward varies by {percent(one.figures['variation'])}): "
        "batches of different length"
    )


def _longest_batch(one: Evidence) -> str:
    return f"the longest batch of a step takes {_share(one)} of it more than the usual one"


def _delays_on_changing_ranks(one: Evidence) -> str:
    delays, ranks = plural(int(one.figures["delays"]), "large delay"), plural(int(one.figures["ranks"]), "rank")
    hit = f"{_number(one, 'hit_steps')} of {plural(int(one.figures['steps']), 'step')}"
    through = CAUSES[one.about or "unknown"].spends_on.format(their="their")
    return f"{delays} on {ranks} in {hit}, through {through}, on no rank more often than chance has it"


def _uneven_positions(one: Evidence) -> str:
    spent = [us for at, us in one.figures.items() if at != "share_of_step"]
    what, _, group = str(one.about).rpartition("; ")
    takes = within_rank.kernels_take(what) if what else "what ranks compute takes"
    positions = f"positions 0 to {len(spent) - 1}{f' of {group}' if group else ''}"
    return f"{takes} {durations(spent)} a step on {positions}, in every step"


def _at_step_end(one: Evidence) -> str:
    after, peers = duration(one.figures["after_us_per_step"]), duration(one.figures["peers_us"])
    return f"{_who(one)} idles for {after} a step after its last operation, before the step ends (peers {peers})"


def _longest_changes(one: Evidence) -> str:
    ranks, steps = plural(int(one.figures["ranks"]), "rank"), plural(int(one.figures["steps"]), "step")
    return f"in {steps}, {ranks} took turns to have most work; the longest costs {_share(one)} of the step"


def _all_pause(one: Evidence) -> str:
    steps = plural(int(one.figures["of_steps"]), "step")
    every = int(one.figures["every"])
    when = f", every {plural(every, 'step')}" if every else ""
    return (
        f"all ranks pause together in {_number(one, 'delays')} of {steps}{when}: {_share(one)} of the step in the mean"
    )


def _longest_delays(one: Evidence) -> str:
    return f"the longest of each step costs {_share(one)} of the step"


def _host_stops(one: Evidence) -> str:
    return f"threads of the mean rank stand still {stops_in_words(one.figures)}"


def _ticks(one: Evidence) -> str:
    waited = ticks_in_words(one.figures["tick_us"], one.figures["share_of_step"])
    return f"threads wait for others that have no core: {waited}"


def _no_core(one: Evidence) -> str:
    if not one.ranks:
        return f"measured by the kernel: {cores_in_words(one.figures)}"
    ready = duration(one.figures["ready_us_per_step"])
    was = "was" if len(one.ranks) == 1 else "were each"
    had_none = f"{_who(one)} {was} ready and had no core for {ready} of {_looked_at(one)}"
    return f"measured by the kernel: {had_none}, {_peers_had(one)}"


def _halted(one: Evidence) -> str:
    if "peers_per_step" in one.figures:
        return f"signals (SIGSTOP) stopped {_times_a_step(one)}"
    return halted_in_words(one.figures["per_step"])


def _throttled(one: Evidence) -> str:
    if "peers_per_step" in one.figures:
        return f"a quota of CPU time stopped {_times_a_step(one)}"
    return throttled_in_words(one.figures["per_step"])


def _times_a_step(one: Evidence) -> str:
    own, usual = significant(one.figures["per_step"]), one.figures["peers_per_step"]
    peers = f"{significant(usual)} times" if usual else "never"
    return f"the process of {_who(one)} {own} times a step, {its(one.ranks)} median peer's {peers}"


def _lower_priority(one: Evidence) -> str:
    nice, usual = _number(one, "nice"), _number(one, "peers_nice")
    return f"{_who(one)} {_verb(one, 'run')} at nice {nice}, peers at {usual}: others that want the core go first"


def _smaller_quota(one: Evidence) -> str:
    usual = one.figures.get("peers_cores")
    peers = "peers none" if usual is None else f"peers of {significant(usual)}"
    has = "has" if len(one.ranks) == 1 else "have"
    return f"{_who(one)} {has} a quota of {significant(one.figures['cores'])} cores, {peers}"


def _fewer_cores(one: Evidence) -> str:
    return f"{_who(one)} may run on {plural(int(one.figures['cores']), 'core')}, peers on {_number(one, 'peers_cores')}"


def _crowded(one: Evidence) -> str:
    cores = int(one.figures["cores"])
    where = "core" if cores == 1 else f"{plural(cores, 'core')}, fewer than they are"
    return f"{_who(one)} may only run on the same {where}"


def _own_threads(one: Evidence) -> str:
    helped, used = duration(one.figures["helpers_us_per_step"]), percent(one.figures["used_share"])
    cores, ranks = (int(one.figures[name]) for name in ("cores", "ranks"))
    return (
        f"ranks lack cores for threads of their own: those beside the training thread (OpenMP's, say) compute {helped} "
        f"a step on the mean rank, and {plural(ranks, 'rank')} of a host use {used} of the "
        f"{plural(cores, 'core')} that they may run on; fewer threads have the same work to do, and save less"
    )


def _rank_by_order(one: Evidence) -> str:
    return f"{_who(one)} is {one.about}: no file says its rank, and they are numbered in the order of their names"


def _slow_network(one: Evidence) -> str:
    others = (
        f"{size(round(one.figures['bytes_per_step']))} a step {'from' if one.figures['receives'] else 'to'} other hosts"
    )
    what = f"{_who(one)} {_verb(one, 'receive' if one.figures['receives'] else 'send')} {others}"
    rate, usual = _rate(one.figures["bytes_per_s"]), _rate(one.figures["usual_bytes_per_s"])
    takes = duration(one.figures["delivering_us_per_step"])
    others_go = f"other transfers go at {usual}{_on_the_way(one)}"
    return f"measured by the kernel: {what} at {rate}, which takes {takes}; {others_go}"


def _network(one: Evidence) -> str:
    sent = size(round(one.figures["bytes_per_step"]))
    rate, fastest = _rate(one.figures["bytes_per_s"]), _rate(one.figures["fastest_bytes_per_s"])
    takes = duration(one.figures["delivering_us_per_step"])
    return (
        f"measured by the kernel: from {one.about} go {sent} a step at {rate}, which takes {takes}; no transfers "
        f"between hosts go faster than {fastest}{_on_the_way(one)}"
    )


_QUEUED_US: Final = 100
"""Less is what any way has."""


def _on_the_way(one: Evidence) -> str:
    """What else happens to transfers."""
    again, queued_us = one.figures["retransmitted_per_step"], one.figures.get("queued_us", 0.0)
    queues = f"; what is sent waits in queues on its way for {duration(queued_us)}" if queued_us >= _QUEUED_US else ""
    return queues + (f"; {significant(again)} segments a step are sent again" if again >= 1 else "")


def _rate(bytes_per_s: float) -> str:
    megabits = bytes_per_s * 8 / 1e6
    return f"{significant(megabits / 1e3)} Gb/s" if megabits >= 1e3 else f"{significant(megabits)} Mb/s"


def _computes_more(one: Evidence) -> str:
    computed = f"{_verb(one, 'compute')} for {duration(one.figures['computed_us_per_step'])} of {_looked_at(one)}"
    return f"measured by the kernel: {_who(one)} {computed}, {_peers_had(one)}"


def _asleep(one: Evidence) -> str:
    still = f"{_verb(one, 'stand')} still for {duration(one.figures['asleep_us_per_step'])} of a step"
    return f"measured by the kernel: {_who(one)} {still}, waiting neither for a core nor for others; {_peers_had(one)}"


def _looked_at(one: Evidence) -> str:
    hit = one.figures.get("hit_steps")
    return "a step" if hit is None else f"each of these {plural(int(hit), 'step')}" if hit > 1 else "this step"


def _peers_had(one: Evidence) -> str:
    least, most = duration(one.figures["peers_least_us"]), duration(one.figures["peers_most_us"])
    return f"peers for {least}" if least == most else f"peers for {least} to {most}"


def _more_calls(one: Evidence) -> str:
    calls, usual = significant(one.figures["calls"]), significant(one.figures["usual_calls"])
    excess = duration(one.figures["excess_us_per_step"])
    times = f"{calls} times a step, peers {usual} times: {excess} a step more"
    return f"{_who(one)} {_verb(one, 'call')} {_operator(one)} {times}"


def _longer_batches(one: Evidence) -> str:
    passes, optimizer = percent(one.figures["passes_share"]), percent(one.figures["optimizer_share"])
    return (
        f"{_who(one)} {_verb(one, 'take')} {passes} longer than peers in forward and backward passes, {optimizer} "
        "in the optimizer: longer batches rather than a slower device (recorded shapes would tell)"
    )


def _larger_inputs(one: Evidence) -> str:
    of, more, excess = one.figures, percent(one.figures["larger_share"]), duration(one.figures["excess_us_per_step"])
    if "per_call" not in of:
        told = f"{_who(one)} {_verb(one, 'give')} {_operator(one)} {more} more than peers do"
        return f"{told}: that takes {them(one.ranks)} {excess} a step longer"
    given, usual = count(round(of["per_call"])), count(round(of["usual_per_call"]))
    least, most = count(round(of["least_per_call"])), count(round(of["most_per_call"]))
    # Of a matrix these are its rows: tokens, samples, patches.
    tensor, axis = round(of["tensor"]), round(of["axis"])
    what, unit = ("rows", "row") if axis == 0 else (f"along dimension {axis} of its tensor {tensor}", "unit")
    per_unit, usually = _of_unit(of["us_per_unit"]), _of_unit(of["usual_us_per_unit"])
    spread = "" if least == most else f" ({least} to {most})"
    same = f"the same {per_unit}" if per_unit == usually else f"{per_unit} (peers {usually})"
    return (
        f"{_who(one)} {_verb(one, 'give')} {_operator(one)} {given} {what} a call, peers {usual}{spread}: {more} more, "
        f"at {same} a {unit}; that takes {them(one.ranks)} {excess} a step longer"
    )


def _of_unit(us: float) -> str:
    """Of so little three digits tell: `0.158 µs`."""
    return f"{us:.3g} µs" if us < 100 else duration(us)


def _larger_batch(one: Evidence) -> str:
    given, usual = (size(round(one.figures[name])) for name in ("given_bytes", "usual_given_bytes"))
    more = percent(one.figures["larger_share"])
    model = "its model" if len(one.ranks) == 1 else "their models"
    return f"{_who(one)} {_verb(one, 'give')} {model} {given} in a step, peers {usual}: {more} more to compute with"


def _every_step(one: Evidence) -> str:
    where = (
        "" if one.about is None else f" in {one.about}" if one.about != "loop" else ", outside of the model's passes"
    )
    steps = plural(int(one.figures["steps"]), "step")
    return f"in the history of {steps} {_who(one)} {_verb(one, 'take')} {_cost(one)} more than peers{where}"


def _collects_garbage(one: Evidence) -> str:
    collected = duration(one.figures["collected_us_per_step"])
    return f"{_who(one)} {_verb(one, 'collect')} garbage for {collected} of a step, {_peers_had(one)}"


def _noticed(one: Evidence) -> str:
    return f"the watch of the running job noticed {them(one.ranks)} by step {int(one.figures['step'])}"


def _sample_time(one: Evidence) -> str:
    own, usual = (duration(one.figures[name]) for name in ("us_per_sample", "usual_us_per_sample"))
    samples, of_peers = (f"{one.figures[name]:g}" for name in ("samples", "usual_samples"))
    return (
        f"{_who(one)} {_verb(one, 'take')} {own} a sample, peers {usual}: the job gives "
        f"{them(one.ranks)} {samples} a step, peers {of_peers}"
    )


def _same_inputs(one: Evidence) -> str:
    excess = duration(one.figures["excess_us_per_step"])
    return f"{_who(one)} {_verb(one, 'take')} {excess} a step longer for inputs as large as peers': no larger batch"


def _in_calls(one: Evidence) -> str:
    doing = CAUSES[one.about or "unknown"].spends_on.format(their=its(one.ranks))
    idle = duration(one.figures["idle_us_per_step"])
    if "peers_us_per_step" not in one.figures:
        return f"the median rank's device idles {idle} a step while its host is {doing}"
    peers = duration(one.figures["peers_us_per_step"])
    host = "its host is" if len(one.ranks) == 1 else "their hosts are"
    lose = "loses" if len(one.ranks) == 1 else "lose"
    return f"{_who(one)} {lose} {idle} a step while {host} {doing}, peers {peers}"


def _stopped(one: Evidence) -> str:
    stopped, peers = duration(one.figures["stopped_us_per_step"]), duration(one.figures["peers_us_per_step"])
    where = "in and between operations" if one.figures.get("between") else "in the middle of operations"
    return f"threads of {_who(one)} stand still for {stopped} a step {where}, those of peers for {peers}"


def _price_range(one: Evidence) -> str:
    least, most = duration(one.figures["least_us"]), duration(one.figures["most_us"])
    if one.about == "network":
        return f"a step loses {least} to {most} to it: one by the replay, the other by how long its transfers take"
    return f"a step loses {least} to {most} to it: the former surely, the latter at most"


def _launches_more(one: Evidence) -> str:
    calls, usual = significant(one.figures["calls"]), significant(one.figures["usual_calls"])
    idle = duration(one.figures["excess_us_per_step"])
    times = f"{calls} times a step, peers {usual} times: the device idles {idle} a step more before what that launches"
    return f"{_who(one)} {_verb(one, 'call')} {_operator(one)} {times}"


def _slower_launches(one: Evidence) -> str:
    idle, peers = duration(one.figures["idle_us_per_step"]), duration(one.figures["peers_us_per_step"])
    return (
        f"the device of {_who(one)} idles {idle} a step between launches that follow one another, that of peers {peers}"
    )


def _unmarked_input(one: Evidence) -> str:
    idle, peers = duration(one.figures["idle_us_per_step"]), duration(one.figures["peers_us_per_step"])
    return (
        f"{_who(one)} {_verb(one, 'spend')} {idle} a step before the model's first operator, peers {peers}: where a "
        "loop fetches its batch, though nothing marks that"
    )


def _exposed(one: Evidence) -> str:
    spent, share = duration(one.figures["exposed_us"]), percent(one.figures["share_of_step"])
    return (
        f"{spent} a step ({share}) go by in communication that no compute hides; how much of it is waiting for a slow "
        "rank, only the other ranks' recordings tell"
    )


def _since(one: Evidence) -> str:
    before, after = duration(one.figures["before_us"]), duration(one.figures["after_us"])
    return f"since step {int(one.figures['step'])}: before it {before} a step more than peers, from then on {after}"


def _than_before(one: Evidence) -> str:
    before, after = duration(one.figures["before_us"]), duration(one.figures["after_us"])
    until = f" to {int(one.figures['until'])}" if "until" in one.figures else ""
    since = f"steps {int(one.figures['step'])}{until}" if until else f"step {int(one.figures['step'])} on"
    if one.about in {"compute", "input"}:
        each = " each" if len(one.ranks) > 1 else ""
        spend = "spends" if len(one.ranks) == 1 else "spend"
        return f"{_who(one)} {spend} {after} a step{each} on {one.about} from {since}, {before} in the other steps"
    return f"{one.about} takes {after} a step from {since}, {before} in the other steps (waiting excluded)"


def _queued_behind(one: Evidence) -> str:
    return f"{one.about} became slow at the same time, in one direction only: it queues behind this link"


def _while_slow(one: Evidence) -> str:
    return (
        f"in the {_number(one, 'steps')} steps of {_number(one, 'of_steps')} in which it is slow it costs "
        f"{duration(one.figures['lost_us'])} each, replayed with what it took in the others"
    )


def _replayed(one: Evidence) -> str:
    after, before = duration(one.figures["after_us"]), duration(one.figures["before_us"])
    cause = CAUSES[one.about or "unknown"]
    undone = (cause.undone_of_ranks if one.ranks else None) or cause.undone
    once = ", once the other findings are fixed" if "others_fixed" in one.figures else ""
    text = f"replayed {undone}, a step takes {after} instead of {before}{once}"
    if after == before:
        why = ": others are as late" if one.ranks else ""
        text = f"replayed {undone}, a step still takes {after}{once}{why}"
    sampled = []
    if "replayed_steps" in one.figures:
        some, all_steps = int(one.figures["replayed_steps"]), int(one.figures["steps"])
        sampled += [f"± {duration(one.figures['plus_minus_us'])}: {some} of {all_steps} steps were replayed"]
    if "replayed_ranks" in one.figures:
        ranks, all_ranks = int(one.figures["replayed_ranks"]), int(one.figures["ranks"])
        sampled += [f"{ranks} of {all_ranks:,} ranks were replayed in place of all"]
    return f"{text} ({'; '.join(sampled)})" if sampled else text


def _others_nearly_as_late(one: Evidence) -> str:
    sentence = "that is little: without it, other ranks would have come nearly as late"
    saved = one.figures.get("saved_together_us")
    return sentence if saved is None else f"{sentence}; all findings fixed together save {duration(saved)}"


def _estimated(one: Evidence) -> str:
    after, before = duration(one.figures["after_us"]), duration(one.figures["before_us"])
    return f"without that the step would take about {after} instead of {before}"


def _who(one: Evidence) -> str:
    return ranks_in_words(one.ranks)


def _verb(one: Evidence, verb: str) -> str:
    return f"{verb}s" if len(one.ranks) == 1 else verb


def _cost(one: Evidence) -> str:
    return f"{duration(one.figures['excess_us_per_step'])} a step ({_share(one)})"


def _share(one: Evidence) -> str:
    return percent(one.figures["share_of_step"])


def _number(one: Evidence, name: str) -> str:
    return count(int(one.figures[name]))


def _place(cause: RootCause, alone: bool) -> str:
    where = "" if alone else f" on rank {cause.rank}"
    if cause.operator == STEP_BEGIN:
        return f"late already when the step began{where}"
    if cause.operator == STEP_END:
        return f"idle at the end of the step before{where}"
    operator = short_name(str(cause.operator))
    return f"idle before {operator}{where}" if cause.is_edge else f"{operator}{where}"


def _operator(one: Evidence) -> str:
    return short_name(str(one.about))


_SENTENCES: Final[Mapping[str, Callable[[Evidence], str]]] = {
    "excess": _excess,
    "every_step": _every_step,
    "collects_garbage": _collects_garbage,
    "noticed": _noticed,
    "slow_operator": _slow_operator,
    "large_delays": _large_delays,
    "host_pauses": _large_delays,
    "periodic": _periodic,
    "came_last": _came_last,
    "made_late": _made_late,
    "operator_behind": _operator_behind,
    "slow_link": _slow_link,
    "links_in_common": _links_in_common,
    "group_not_rank": _group_not_rank,
    "uneven_stages": _uneven_stages,
    "uneven_batches": _uneven_batches,
    "longest_batch": _longest_batch,
    "uneven_positions": _uneven_positions,
    "longest_changes": _longest_changes,
    "at_step_end": _at_step_end,
    "all_pause": _all_pause,
    "delays_on_changing_ranks": _delays_on_changing_ranks,
    "longest_delays": _longest_delays,
    "host_stops": _host_stops,
    "ticks": _ticks,
    "no_core": _no_core,
    "throttled": _throttled,
    "halted": _halted,
    "lower_priority": _lower_priority,
    "smaller_quota": _smaller_quota,
    "fewer_cores": _fewer_cores,
    "crowded": _crowded,
    "own_threads": _own_threads,
    "slow_network": _slow_network,
    "network": _network,
    "computes_more": _computes_more,
    "asleep": _asleep,
    "more_calls": _more_calls,
    "longer_batches": _longer_batches,
    "larger_inputs": _larger_inputs,
    "larger_batch": _larger_batch,
    "sample_time": _sample_time,
    "same_inputs": _same_inputs,
    "stopped": _stopped,
    "price_range": _price_range,
    "launches_more": _launches_more,
    "slower_launches": _slower_launches,
    "in_calls": _in_calls,
    "unmarked_input": _unmarked_input,
    "exposed": _exposed,
    "since": _since,
    "than_before": _than_before,
    "queued_behind": _queued_behind,
    "while_slow": _while_slow,
    "rank_by_order": _rank_by_order,
    "replayed": _replayed,
    "others_nearly_as_late": _others_nearly_as_late,
    "estimated": _estimated,
    **devices.SENTENCES,
    **hangs.SENTENCES,
    **within_rank.SENTENCES,
}
