"""How Python lays out the arguments of the CUDA kernels, and which text of the sources is compiled."""

from __future__ import annotations

import re
from ctypes import sizeof

import pytest

torch = pytest.importorskip("torch")

from fanrank.engine.errors import ParameterError  # noqa: E402
from fanrank.kernels.cuda.arguments import HEADER, LAYOUTS, read_layouts  # noqa: E402
from fanrank.kernels.cuda.launcher import FOLDER, OPERATIONS, SOURCES, source_of  # noqa: E402
from fanrank.kernels.work import DESCRIPTOR_BYTES, ENTRY_BYTES, SEGMENT_FIELDS  # noqa: E402


def test_every_structure_of_the_header_has_a_layout() -> None:
    assert sorted(LAYOUTS) == sorted(re.findall(r"^struct (\w+)", HEADER.read_text(), re.MULTILINE))
    assert LAYOUTS["SegmentRow"].fields == SEGMENT_FIELDS
    sizes = {"SegmentRow": 8 * len(SEGMENT_FIELDS), "Descriptor": DESCRIPTOR_BYTES, "Entry": ENTRY_BYTES}
    assert {name: sizeof(LAYOUTS[name].structure) for name in sizes} == sizes


def test_a_field_needs_a_known_type_and_a_comment() -> None:
    fields = "    i32 count;         // number\n    const i64* words;  // [S] int64\n    void* any;  // [P]\n"
    layout = read_layouts(f"struct Known {{\n{fields}}};\n")["Known"]
    assert [field[0] for field in layout.structure._fields_] == ["count", "words", "any"]
    assert layout.pointers == {"words": 8, "any": 0}
    for line in ("    i32 count;\n", "    i16 count;  // number\n", "    double* ;  // [S]\n"):
        with pytest.raises(ValueError, match="Wrong: not a field"):
            read_layouts(f"struct Wrong {{\n{line}}};\n")


def test_the_values_of_a_structure_are_checked() -> None:
    text = "struct Pair {\n    i32 count;         // number\n    const i64* words;  // [S] int64\n};\n"
    layout = read_layouts(text)["Pair"]
    words = torch.arange(4)
    assert layout.fill(count=3, words=words).words == words.data_ptr()
    assert layout.fill(count=3, words=None).words is None
    for message, values in [
        (r"Pair: these arguments are missing or unknown: \['words'\]", {"count": 3}),
        (r"missing or unknown: \['more'\]", {"count": 3, "words": None, "more": 1}),
        ("Pair.words must be a tensor or None", {"count": 3, "words": 7}),
        ("not contiguous", {"count": 3, "words": words[::2]}),
        ("elements of 8 bytes, got a tensor with elements of 4", {"count": 3, "words": words.int()}),
    ]:
        with pytest.raises(ParameterError, match=message):
            layout.fill(**values)  # type: ignore[arg-type]


def test_sources_are_compiled_with_their_headers_and_none_of_the_system() -> None:
    """NVRTC has no system headers."""
    for operation in OPERATIONS:
        text = source_of(operation)
        assert "#include" not in text
        assert text.count("constexpr i32 WARP = 32;") == 1
    for file in (*SOURCES, *FOLDER.glob("*.cuh")):
        assert not re.findall(r"#include <", file.read_text()), file.name
