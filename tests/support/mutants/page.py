"""Faults in the page of the server and in the endpoints that it asks."""

from __future__ import annotations

from .fault import Fault

TESTS = "tests/server/test_page.py"

FAULTS = (
    Fault(
        "the page asks for a key",
        "server/app.py",
        'OPEN = (*ALIVE, "/openapi.json", *page.FILES)',
        'OPEN = (*ALIVE, "/openapi.json")',
        f"{TESTS}::test_the_page_opens_without_a_key_also_while_the_server_is_full",
    ),
    Fault(
        "the page may stand in another site's frame",
        "server/page.py",
        "form-action 'none'; frame-ancestors 'none'; ",
        "form-action 'none'; ",
        f"{TESTS}::test_the_page_opens_without_a_key_also_while_the_server_is_full",
    ),
    Fault(
        "text of records is written as HTML",
        "server/page/dom.js",
        "  element.append(...children",
        "  element.innerHTML = children.join('');\n  element.append(...children",
        f"{TESTS}::test_the_page_has_no_inline_script_and_no_other_address",
    ),
    Fault(
        "quiet text is too dark on the dark page",
        "server/page/page.css",
        "--quiet: #a6b0bb",
        "--quiet: #5a646f",
        f"{TESTS}::test_colors_have_the_contrast_of_wcag_aa_light_and_dark",
    ),
    Fault(
        "a timed search waits past its deadline",
        "server/search.py",
        "await asyncio.wait_for(waiting, seconds_left(request))",
        "await waiting",
        f"{TESTS}::test_timed_searches_wait_for_one_another_until_their_deadline",
    ),
    Fault(
        "every key sees how often a namespace was searched",
        "server/status.py",
        '    check_read(principal, namespace, "namespace")\n    return Response(json.dumps(state.engine.health',
        "    return Response(json.dumps(state.engine.health",
        f"{TESTS}::test_a_key_sees_its_own_namespaces_alone",
    ),
    Fault(
        "a key that may not write moves what drift is compared with",
        "server/status.py",
        '    check_write(principal, namespace, "namespace")',
        '    check_read(principal, namespace, "namespace")',
        f"{TESTS}::test_drift_is_told_to_who_may_write",
    ),
)
