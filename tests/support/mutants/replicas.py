"""Faults in replicas of shards, whose answers must not depend on who gives them."""

from __future__ import annotations

from .fault import Fault

REPLICAS = "tests/shards/test_shard_replicas.py"

FAULTS = (
    Fault(
        "a follower skips a batch",
        "shards/replicas/followers.py",
        '            how = {**call.keywords, "missing_ok": True, "tracked": ()}\n'
        '            self._check_followed(link.send("follow", call.after, "apply", *call.arguments, **how))\n',
        "            pass\n",
        f"{REPLICAS} -k lags_is_not_asked",
    ),
    Fault(
        "a follower does not notice that it has missed a batch",
        "shards/shard/copying.py",
        "return getattr(self, verb)(*arguments, **keywords) if newest == after else Gone(newest)",
        "return getattr(self, verb)(*arguments, **keywords)",
        f"{REPLICAS} -k misses_something",
    ),
    Fault(
        "a follower answers at another epoch",
        "shards/shard/copying.py",
        "        if self.number_at(epoch) != number:\n",
        "        if False:\n",
        f"{REPLICAS} -k misses_something",
    ),
    Fault(
        "a follower that lags is taken for one that holds the state",
        "shards/replicas/followers.py",
        "self._first <= number <= self._last",
        "self._first <= number",
        f"{REPLICAS} -k lags_is_not_asked",
    ),
    Fault(
        "a follower shows a copy before its move has ended",
        "shards/replicas/followers.py",
        '            how = {**call.keywords, "missing_ok": True, "tracked": ()}\n',
        '            how = {**call.keywords, "missing_ok": True, "tracked": (), "hide": None}\n',
        f"{REPLICAS} -k of_a_move_no_replica_shows",
    ),
    Fault(
        "a follower keeps what has moved to another shard",
        "shards/replicas/followers.py",
        '            how = {**call.keywords, "missing_ok": True, "tracked": ()}\n',
        '            how = {**call.keywords, "missing_ok": True, "tracked": (), "drop": None}\n',
        f"{REPLICAS} -k followers_that_lag_and_are_lost",
    ),
    Fault(
        "followers are kept whose leader ended in the middle of a write",
        "shards/replicas/replicas.py",
        '                    self._let_all_go("the leader ended or failed in the middle of a write")\n',
        "",
        f"{REPLICAS} -k a_leader_that_ends_in_the_middle",
    ),
    Fault(
        "followers are kept whose leader failed when its write was done",
        "shards/replicas/replicas.py",
        "self.pending, self.refused = None, True",
        "self.pending, self.refused = None, False",
        f"{REPLICAS} -k fails_when_it_is_done",
    ),
    Fault(
        "what is written between two pages is not done again on the copy",
        "shards/replicas/followers.py",
        "            self._redo(link, number, call)\n",
        "",
        f"{REPLICAS} -k filled_while_others_write",
    ),
    Fault(
        "a follower keeps the numbers of its filling",
        "shards/replicas/followers.py",
        'link.send("tag", last, anew=True)',
        'link.send("tag", last)',
        f"{REPLICAS} -k of_many_pages",
    ),
    Fault(
        "a follower is asked before it knows new columns",
        "shards/replicas/followers.py",
        "self._informed == self._leading.informed",
        "self._informed <= self._leading.informed",
        f"{REPLICAS} -k learns_what_its_leader_learns",
    ),
    Fault(
        "a leader that is away is asked before its followers",
        "shards/replicas/replicas.py",
        "return self.away if replica is None else replica.silent",
        "return False if replica is None else replica.silent",
        f"{REPLICAS} -k searches_go_on_while_leaders_are_away",
    ),
    Fault(
        "nobody brings back a leader that no search needs",
        "shards/replicas/replicas.py",
        "                    self._bringing.start()\n",
        "",
        f"{REPLICAS} -k is_brought_back",
    ),
    Fault(
        "an approximate search goes to any replica",
        "shards/replicas/replicas.py",
        "self._exact = isinstance(asked, Ask) and is_approximate(asked)",
        "self._exact = False",
        f"{REPLICAS} -k every_strategy_of_a_follower",
    ),
)
