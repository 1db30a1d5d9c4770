"""An agent's loop: a planner asks its own log several things a step, and writes down what it did.

Each step is one call of `search`, whatever the number of questions. The next step finds what this one wrote.

step 1: look at the deploy of billing
  deploy billing -> 'deploy of billing failed: disk full on db-2' by tool
  disk db-2 -> 'deploy of billing failed: disk full on db-2' by tool
  billing owner -> 'Ana owns billing' by user
step 2: free the disk, tell the owner
  last fix disk full -> 'deleted old logs on db-2: disk full no more' by assistant
  billing owner -> 'Ana owns billing' by user
step 3: deploy again
  deploy billing disk -> 'deploy of billing works after the disk of db-2 was freed' by tool
6 records
"""

import fanrank as fr

PLAN = [
    (
        "look at the deploy of billing",
        ["deploy billing", "disk db-2", "billing owner"],
        ("assistant", "deleted old logs on db-2: disk full no more"),
    ),
    (
        "free the disk, tell the owner",
        ["last fix disk full", "billing owner"],
        ("tool", "deploy of billing works after the disk of db-2 was freed"),
    ),
    ("deploy again", ["deploy billing disk"], ("assistant", "told Ana that billing is up")),
]


def main() -> None:
    log = fr.Engine.from_records(
        [
            fr.Record("log-0", "Ana owns billing", time=0, role="user"),
            fr.Record("log-1", "Bo is on call this week", time=1, role="user"),
            fr.Record("log-2", "deploy of billing failed: disk full on db-2", time=2, role="tool"),
        ]
    )
    for step, (what, questions, (role, done)) in enumerate(PLAN, 1):
        print(f"step {step}: {what}")
        now = float(len(log))
        # A score halves with each ten moments of age, so that of two fixes the later one leads.
        hits = log.search([fr.Query(question, now=now, half_life=10) for question in questions], k=1, texts=True)
        for question, found in zip(questions, hits, strict=True):
            print(f"  {question} -> {found[0].text!r} by {found[0].record.role}")
        log.add([fr.Record(f"log-{len(log)}", done, time=now, role=role)])
    print(len(log), "records")


if __name__ == "__main__":
    main()
