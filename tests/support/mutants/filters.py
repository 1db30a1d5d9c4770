"""Faults in filters and in columns of JSON values."""

from __future__ import annotations

from .fault import Fault

JSON = "tests/index/test_json_columns.py"
AUTO = "tests/carry/test_auto_columns.py"
DIALECTS = "tests/records/test_dialects.py"

FAULTS = (
    Fault(
        "values that a failed write took back stay decoded",
        "engine/index/masks.py",
        "if strings[: len(texts)] != texts:",
        "if len(strings) < len(texts):",
        f"{JSON}::test_a_failed_write_leaves_no_decoded_value",
    ),
    Fault(
        "values that came after the first filter are not seen",
        "engine/index/masks.py",
        "if len(strings) > len(texts):",
        "if not texts:",
        f"{JSON}::test_any_history_of_values",
    ),
    Fault(
        "a number equals its own text alone",
        "engine/records/values.py",
        "if float(value) == value:",
        "if isinstance(value, float):",
        f"{JSON}::test_every_operator_is_plain_python",
    ),
    Fault(
        "a negated test leaves out what has no value",
        "engine/index/masks.py",
        "return _Among(name, codes, False, inside)",
        "return _Among(name, codes, not inside, inside)",
        f"{JSON}::test_every_operator_is_plain_python",
    ),
    Fault(
        "a column of another kind keeps the codes of the old one",
        "engine/storage/other_columns.py",
        "n not in known.categories or (n in schema.json) != (n in known.json)",
        "n not in known.categories",
        f"{AUTO}::test_a_column_may_change_its_kind_in_one_step",
    ),
    Fault(
        "two that declare at the same time undo each other",
        "engine/storage/memory.py",
        "self.change_columns(lambda schema: schema.reaching(names))",
        "self.change_columns(lambda _, reached=self.schema.reaching(names): reached)",
        f"{AUTO}::test_two_that_declare_at_the_same_time_both_count",
    ),
    Fault(
        "a key of the payload is taken for a built-in column",
        "engine/records/dialects/place.py",
        "PAYLOAD + key if self._payload else key",
        "key",
        f"{AUTO}::test_built_in_columns_stay_what_they_are",
    ),
    Fault(
        "a directory with columns of JSON keeps an old format",
        "engine/index/columns.py",
        'any(kind == "json" or not name.isidentifier() for name, kind in columns.items())',
        "any(not name.isidentifier() and name != ANY for name in columns)",
        f"{AUTO}::test_only_columns_of_json_take_the_new_formats",
    ),
    Fault(
        "what is unknown passes where it is negated",
        "engine/records/dialects/sql.py",
        "return self.place.both([self.place.negate(compared), exists])",
        "return self.place.negate(compared)",
        f"{DIALECTS}::test_sql_has_three_values_as_sqlite",
    ),
    Fault(
        "a missing object passes what a key of it must not be",
        "engine/records/dialects/langgraph.py",
        'yield place.compare(key, "matches", {})',
        "pass",
        f"{DIALECTS}::test_langgraph_compares_as_its_in_memory_store",
    ),
)
