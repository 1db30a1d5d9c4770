"""A chat's memory on disk: one namespace a user, turns ranked by `auto`, and what expires.

`auto` also reads what stands around a turn, so the answer to a question is found by the question's words.

which city does Ana like best?
  lisbon-0 | assistant: Which city do you like best?
  lisbon-1 | user: Lisbon, by far. I could live there.
Bo's memory: 0 hits
kept for 1:00:00: 2 of 7 turns say "code"
kept for 0:00:00.000001: 0 of 5 turns say "code"
"""

import tempfile
from datetime import timedelta

import fanrank as fr

TALKS = {
    "lisbon": ["Which city do you like best?", "Lisbon, by far. I could live there.", "Noted!"],
    "tea": ["What shall I order?", "Tea, please, without sugar."],
}
SECRET = ["What is the code of the door?", "The code is 4711, for the next hour only."]


def turns(session: str, texts: list[str], first: float) -> list[fr.Record]:
    roles = ("assistant", "user")
    return [
        fr.Record(f"{session}-{place}", text, session=session, role=roles[place % 2], time=first + place)
        for place, text in enumerate(texts)
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, fr.Engine.open(folder, profile="chat") as memory:
        ana, bo = memory.namespace("users/ana"), memory.namespace("users/bo")
        for day, (session, texts) in enumerate(TALKS.items()):
            ana.add(turns(session, texts, day * 86_400.0))
        question = "which city does Ana like best?"
        print(question)
        for hit in ana.search(question, k=2, strategy="auto", texts=True)[0]:
            print(f"  {hit.id} | {hit.record.role}: {hit.text}")
        print(f"Bo's memory: {bo.search(question).counts[0]} hits")
        for kept in (timedelta(hours=1), timedelta(microseconds=1)):
            ana.upsert(turns("door", SECRET, 3 * 86_400.0), ttl=kept)
            print(f'kept for {kept}: {ana.search("code").counts[0]} of {ana.count()} turns say "code"')


if __name__ == "__main__":
    main()
