"""Faults in what makes several shards one memory."""

from __future__ import annotations

from .fault import Fault

ORACLE = "tests/shards/test_shard_oracle.py"
HISTORIES = "tests/shards/test_shard_histories.py"
STRATEGIES = "tests/shards/test_shard_strategies.py"
FAILURES = "tests/shards/test_shard_failures.py"
DURABILITY = "tests/shards/test_shard_durability.py"
GROUPING = "tests/shards/test_shard_grouping.py"
LATE = "tests/shards/test_shard_late.py"
MOVES = "tests/shards/test_shard_moves.py::test_any_history_of_moves_gives_the_answers_of_one_engine"
VERBS = "tests/shards/test_shard_verbs.py"

FAULTS = (
    Fault(
        "a shard scores by its own statistics",
        "shards/shard/imposed.py",
        '"imposed": Statistics(counts.documents, counts.lengths),',
        '"imposed": base.statistics,',
        f"{HISTORIES}::test_any_history_gives_the_answers_of_one_engine",
    ),
    Fault(
        "the document frequencies of all shards do not count",
        "shards/shard/imposed.py",
        "self.counts[number] = count",
        "self.counts[number] = 1",
        f"{HISTORIES}::test_any_history_gives_the_answers_of_one_engine",
    ),
    Fault(
        "equal scores are ordered by shard",
        "shards/search/merge.py",
        "ranking = np.lexsort((orders, place, -scores, orders < 0), axis=1)",
        "ranking = np.lexsort((place, -scores, orders < 0), axis=1)",
        ORACLE,
    ),
    Fault(
        "candidates of equal score are ordered by shard",
        "shards/search/merge.py",
        "ranking = np.lexsort((orders, places(rows, names), rows))",
        "ranking = np.lexsort((places(rows, names), rows))",
        f"{STRATEGIES}::test_fusions_of_all_channels_that_add_up",
    ),
    Fault(
        "each shard's best candidates count, not the best of all",
        "shards/search/merge.py",
        "inside = np.arange(len(ranked)) - starts[own] < depths[own]",
        "inside = np.ones(len(ranked), dtype=np.bool_)",
        f"{STRATEGIES}::test_fusions_of_all_channels_that_add_up",
    ),
    Fault(
        "a shard answers from its newest state, whatever epoch is asked for",
        "shards/shard/shard.py",
        "return next((state for number, state in reversed(self._states) if number <= epoch), None)",
        "return self._states[-1][1] if self._states else None",
        f"{DURABILITY} -k readers_see_no_part",
    ),
    Fault(
        "records are fetched from a newer epoch",
        "shards/shard/shard.py",
        "if state is None or self._applying or self._states[-1][0] > epoch:",
        "if state is None:",
        f"{DURABILITY} -k readers_see_no_part",
    ),
    Fault(
        "a batch is sent before its intent is written",
        "shards/coordinator/coordinator.py",
        "        self._intend(Intent(batches))\n",
        "        self._pending = Intent(batches)\n",
        f"{DURABILITY} -k a_batch_that_a_crash_cuts_off",
    ),
    Fault(
        "an intent is dropped before all have acknowledged",
        "shards/coordinator/coordinator.py",
        '        reach("batch.sent")\n',
        '        self._drop_intent()\n        reach("batch.sent")\n',
        f"{DURABILITY} -k a_shard_that_does_not_answer",
    ),
    Fault(
        "an intent that is done comes back at the next opening",
        "shards/coordinator/intents.py",
        "            os.ftruncate(self._file, 0)\n            os.fsync(self._file)\n        except OSError as error:",
        "            pass\n        except OSError as error:",
        f"{DURABILITY} -k a_batch_that_a_crash_cuts_off",
    ),
    Fault(
        "an intent that rotted is taken for a torn one",
        "shards/coordinator/intents.py",
        "        if not size or len(body) < size:",
        "        if not size or len(body) < size or zlib.crc32(body) != checksum:",
        f"{DURABILITY} -k an_intent_that_rotted",
    ),
    Fault(
        "a torn intent stays in the file",
        "shards/coordinator/intents.py",
        "            if data:\n",
        "            if False:\n",
        f"{DURABILITY} -k an_intent_that_was_torn",
    ),
    Fault(
        "what is carried out again adds its records a second time",
        "shards/coordinator/coordinator.py",
        "{shard: batch.again() for shard, batch in intent.batches.items() if not done[shard]}",
        "dict(intent.batches)",
        f"{DURABILITY} -k a_batch_that_a_crash_cuts_off",
    ),
    Fault(
        "a write that was given up is carried out late",
        "shards/shard/shard.py",
        "if not self._states or epoch <= self._last:",
        "if not self._states:",
        f"{LATE} -k comes_after_later_writes",
    ),
    Fault(
        "a shard that was started anew writes before it is told an epoch",
        "shards/shard/shard.py",
        "if not self._states or epoch <= self._last:",
        "if epoch <= self._last:",
        LATE,
    ),
    Fault(
        "a namespace is searched in its new home before all is there",
        "shards/coordinator/coordinator.py",
        "        self.placement = placement\n\n    def _live",
        "        self.placement = placement\n"
        "        self.view = View(self.view.epoch, placement, self.view.content)\n\n    def _live",
        f"{DURABILITY} -k a_move_that_a_crash_cuts_off",
    ),
    Fault(
        "the order of writes begins anew at each opening",
        "shards/opening/opening.py",
        "coordinator.start(next_order, expiring=expiring,",
        "coordinator.start(0, expiring=expiring,",
        f"{DURABILITY} -k order_of_writes",
    ),
    Fault(
        "users see the column of orders",
        "shards/reading.py",
        "return {key: strip(found[key]) for key in keys if key in found}",
        "return {key: found[key] for key in keys if key in found}",
        f"{HISTORIES}::test_any_history_gives_the_answers_of_one_engine",
    ),
    Fault(
        "a whole copy does not follow what is written",
        "shards/coordinator/coordinator.py",
        "            whole.apply(self._number, removed, added, self.oldest(), self.until)\n",
        "            pass\n",
        f"{DURABILITY} -k whole_copies_follow",
    ),
    Fault(
        "searches see the copies of a namespace that is on its way",
        "shards/shard/copying.py",
        "        if self._names.isdisjoint(state.snapshots):\n",
        "        if True:\n",
        MOVES,
    ),
    Fault(
        "what is removed during a move stays in the copy",
        "shards/moves/moves.py",
        "self._moves[namespace].removed |= dict.fromkeys(ids)",
        "self._moves[namespace].removed |= {}",
        MOVES,
    ),
    Fault(
        "parts are copied one after another, not in the order of writes",
        "shards/moves/moves.py",
        "            key=lambda each: each[0],\n",
        "            key=lambda each: (each[1], each[0]),\n",
        MOVES,
    ),
    Fault(
        "the records of a move stay in the old home",
        "shards/coordinator/coordinator.py",
        "            if shard not in kept:\n",
        "            if False:\n",
        MOVES,
    ),
    Fault(
        "the statistics of a split namespace do not follow what is written",
        "shards/coordinator/coordinator.py",
        "                self.tables[namespace].add(self._number, Counts.sum(known, self._fields))\n",
        "                pass\n",
        f"{HISTORIES}::test_any_history_gives_the_answers_of_one_engine",
    ),
    Fault(
        "small namespaces do not go to other shards together",
        "shards/moves/grouping.py",
        "TOGETHER = 1_024\n",
        "TOGETHER = 1\n",
        f"{GROUPING} -k work_grows",
    ),
    Fault(
        "namespaces that go together leave their records in the old home",
        "shards/moves/grouping.py",
        "            self._apply_apart({shard: Batch(ids) for shard, ids in removed.items()})\n",
        "            pass\n",
        f"{GROUPING} -k a_crash",
    ),
    Fault(
        "namespaces go together without an intent",
        "shards/moves/grouping.py",
        "            self._intend(Intent(moves=tuple(moves)))\n",
        "",
        f"{GROUPING} -k a_crash",
    ),
    Fault(
        "a move that a shard interrupts is not given up",
        "shards/moves/moves.py",
        """            except UnavailableError:
                self._give_up(move)""",
        """            except UnavailableError:
                pass""",
        f"{FAILURES} -k a_move_begins_anew",
    ),
    Fault(
        "Ray starts a shard on any machine",
        "shards/processes/cluster.py",
        'settings["resources"] = self._machines.resources(number, name, known)',
        "self._machines.resources(number, name, known)",
        "tests/shards/test_shard_machines.py::test_a_shard_runs_where_its_directory_lies",
    ),
    Fault(
        "a batch over namespaces is numbered record by record",
        "shards/protocol/order.py",
        "    return [record for group in groups.values() for record in group]",
        "    return list(added)",
        f"{VERBS} -k listings",
    ),
    Fault(
        "an export begins while others write",
        "shards/listing/streams.py",
        "    with coordinator.paused() as view:",
        "    with coordinator.reading() as view:",
        f"{VERBS} -k one_moment",
    ),
    Fault(
        "an export has the order of each shard's store",
        "shards/listing/streams.py",
        'ranking = np.argsort(np.concatenate(orders), kind="stable")',
        "ranking = np.arange(sum(map(len, orders)))",
        f"{VERBS} -k export",
    ),
    Fault(
        "a backup begins while others write",
        "shards/opening/backup.py",
        "        with coordinator.paused():\n            copies.begin()",
        "        with coordinator.reading():\n            copies.begin()",
        f"{VERBS} -k one_epoch",
    ),
    Fault(
        "a column that one shard refuses stays in the others",
        "shards/coordinator/columns.py",
        '            call_all(done, None, "change", take_columns, before)\n',
        "",
        f"{VERBS} -k columns",
    ),
    Fault(
        "a namespace that moves loses what it learned",
        "shards/moves/moves.py",
        "            if move.after[0] != move.before[0]:",
        "            if False:",
        f"{VERBS} -k learned",
    ),
    Fault(
        "the k* rule goes by one part of a namespace",
        "shards/coordinator/learning.py",
        "    found = list(parts)\n    occupied",
        "    found = list(parts)[:1]\n    occupied",
        f"{VERBS} -k learned",
    ),
    Fault(
        "hits are explained by later records",
        "shards/coordinator/coordinator.py",
        "        self.changes.note((name for each in answers for name in each.sizes), self._number)\n",
        "",
        f"{VERBS} -k explained",
    ),
    Fault(
        "the candidates of two parts of a batch are mixed",
        "shards/search/candidates.py",
        "starts[rows] = first + own.offsets[:-1]",
        "starts[rows] = own.offsets[:-1]",
        f"{STRATEGIES} -k candidates",
    ),
)
