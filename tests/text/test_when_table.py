"""Time expressions and the intervals that they name, written out by hand: calendar borders, clock changes, zones."""

from __future__ import annotations

import datetime as dt
import math
from zoneinfo import ZoneInfo

import pytest

from fanrank.engine.text.time_expressions.parse import parse_when

# Text | now | zone | start | end. Times are the zone's own, or UTC with a Z. "<" before an end: the interval is closed
# at the last number before it. A plain "now" is the query's own time.
NAMED = """
# Years
today | 2024-12-31 23:59:59 | UTC | 2024-12-31 | < 2025-01-01
today | 2025-01-01 00:00 | UTC | 2025-01-01 | < 2025-01-02
this year | 2025-01-01 00:00 | UTC | 2025-01-01 | now
this year so far | 2024-12-31 23:59 | UTC | 2024-01-01 | now
in 2024 | 2025-03-19 14:30 | UTC | 2024-01-01 | < 2025-01-01
since 2024 | 2025-03-19 14:30 | UTC | 2024-01-01 | now
after 2024 | 2025-03-19 14:30 | UTC | 2025-01-01 | now
in the 1990s | 2025-03-19 14:30 | UTC | 1990-01-01 | < 2000-01-01
during the 2010s | 2025-03-19 14:30 | UTC | 2010-01-01 | < 2020-01-01
last year | 2025-03-01 00:00 | UTC | 2024-03-01 | now
last year | 2024-03-01 00:00 | UTC | 2023-03-02 | now
last two years | 2025-03-01 00:00 | UTC | 2023-03-02 | now
in December | 2025-01-01 00:00 | UTC | 2024-12-01 | < 2025-01-01
in December | 2024-12-01 00:00 | UTC | 2024-12-01 | < 2025-01-01
in January | 2024-12-31 23:59 | UTC | 2024-01-01 | < 2024-02-01
December 31 | 2025-01-01 00:30 | UTC | 2024-12-31 | < 2025-01-01
on January 1st | 2024-12-31 23:59 | UTC | 2024-01-01 | < 2024-01-02
the day before yesterday | 2025-01-01 09:00 | UTC | 2024-12-30 | < 2024-12-31
yesterday | 2025-01-01 09:00 | UTC | 2024-12-31 09:00 | now
yesterday morning | 2025-01-01 09:00 | UTC | 2024-12-31 | < 2025-01-01
tomorrow | 2024-12-31 09:00 | UTC | 2025-01-01 | < 2025-01-02
the day after tomorrow | 2024-12-30 09:00 | UTC | 2025-01-01 | < 2025-01-02
1 day ago | 2025-01-01 00:00 | UTC | 2024-12-31 | < 2025-01-01
366 days ago | 2025-01-01 12:00 | UTC | 2024-01-01 | < 2024-01-02
in March last year | 2025-03-19 14:30 | UTC | 2024-03-01 | < 2024-04-01
last year in March | 2025-03-19 14:30 | UTC | 2024-03-01 | < 2024-04-01
on March 3rd of last year | 2025-03-19 14:30 | UTC | 2024-03-03 | < 2024-03-04
on May 3 this year | 2025-03-19 14:30 | UTC | 2025-05-03 | < 2025-05-04
in Q4 last year | 2025-01-01 00:00 | UTC | 2024-10-01 | < 2025-01-01
between December 20 and January 5 | 2025-03-19 14:30 | UTC | 2024-12-20 | < 2025-01-06
from December 30, 2024 to January 2, 2025 | 2025-03-19 14:30 | UTC | 2024-12-30 | < 2025-01-03
# Months and leap days
this month | 2025-02-28 23:59 | UTC | 2025-02-01 | now
this month | 2024-02-29 12:00 | UTC | 2024-02-01 | now
this month | 2025-03-01 00:00 | UTC | 2025-03-01 | now
last month | 2025-03-31 12:00 | UTC | 2025-03-01 12:00 | now
last month | 2024-03-30 12:00 | UTC | 2024-02-29 12:00 | now
in February | 2025-02-01 00:00 | UTC | 2025-02-01 | < 2025-03-01
in February | 2024-03-01 00:00 | UTC | 2024-02-01 | < 2024-03-01
in the month of February 2023 | 2025-03-19 14:30 | UTC | 2023-02-01 | < 2023-03-01
in February 1900 | 2025-03-19 14:30 | UTC | 1900-02-01 | < 1900-03-01
in February 2000 | 2025-03-19 14:30 | UTC | 2000-02-01 | < 2000-03-01
in 2025-02 | 2025-03-19 14:30 | UTC | 2025-02-01 | < 2025-03-01
since 2024-12 | 2025-03-19 14:30 | UTC | 2024-12-01 | now
last February | 2024-02-29 12:00 | UTC | 2023-02-01 | < 2023-03-01
last February | 2024-03-01 00:00 | UTC | 2024-02-01 | < 2024-03-01
in early February | 2025-03-19 14:30 | UTC | 2025-02-01 | < 2025-03-01
February 29 | 2025-03-19 14:30 | UTC | 2024-02-29 | < 2024-03-01
February 29 | 2024-02-29 00:00 | UTC | 2024-02-29 | < 2024-03-01
February 29 | 2024-02-28 23:59 | UTC | 2020-02-29 | < 2020-03-01
February 29 | 1903-06-01 12:00 | UTC | 1896-02-29 | < 1896-03-01
2000-02-29 | 2025-03-19 14:30 | UTC | 2000-02-29 | < 2000-03-01
yesterday | 2024-03-01 08:00 | UTC | 2024-02-29 08:00 | now
1 day ago | 2024-03-01 08:00 | UTC | 2024-02-29 | < 2024-03-01
1 day ago | 2025-03-01 08:00 | UTC | 2025-02-28 | < 2025-03-01
twenty-nine days ago | 2024-03-01 08:00 | UTC | 2024-02-01 | < 2024-02-02
the day before yesterday | 2024-03-02 08:00 | UTC | 2024-02-29 | < 2024-03-01
tomorrow | 2024-02-28 08:00 | UTC | 2024-02-29 | < 2024-03-01
last Thursday | 2024-03-01 08:00 | UTC | 2024-02-29 | < 2024-03-01
29.02.2024 | 2025-03-19 14:30 | UTC | 2024-02-29 | < 2024-03-01
from February 28 to March 1, 2024 | 2025-03-19 14:30 | UTC | 2024-02-28 | < 2024-03-02
# Dates in numbers
15.03.2025 | 2025-03-19 14:30 | UTC | 2025-03-15 | < 2025-03-16
on 15.3.2025 | 2025-03-19 14:30 | UTC | 2025-03-15 | < 2025-03-16
since 15/03/2025 | 2025-03-19 14:30 | UTC | 2025-03-15 | now
03/15/2025 | 2025-03-19 14:30 | UTC | 2025-03-15 | < 2025-03-16
15-03-2025 | 2025-03-19 14:30 | UTC | 2025-03-15 | < 2025-03-16
04/04/2024 | 2025-03-19 14:30 | UTC | 2024-04-04 | < 2024-04-05
2025/03/15 | 2025-03-19 14:30 | UTC | 2025-03-15 | < 2025-03-16
2025.03.15 | 2025-03-19 14:30 | UTC | 2025-03-15 | < 2025-03-16
2025-03-04 | 2025-03-19 14:30 | UTC | 2025-03-04 | < 2025-03-05
2025-03-04T23:10:00 | 2025-03-19 14:30 | UTC | 2025-03-04 | < 2025-03-05
between 2025-03-04 and 2025-03-06 | 2025-03-19 14:30 | UTC | 2025-03-04 | < 2025-03-07
# Dates in words
the 1st of March | 2025-03-19 14:30 | UTC | 2025-03-01 | < 2025-03-02
the 31st of December, 2023 | 2025-03-19 14:30 | UTC | 2023-12-31 | < 2024-01-01
on Tue, 4 Mar 2025 | 2025-03-19 14:30 | UTC | 2025-03-04 | < 2025-03-05
on March the 4th | 2025-03-19 14:30 | UTC | 2025-03-04 | < 2025-03-05
after March 4 | 2025-03-19 14:30 | UTC | 2025-03-05 | now
March 3 to March 5 | 2025-03-19 14:30 | UTC | 2025-03-03 | < 2025-03-06
March 3 - March 5, 2024 | 2025-03-19 14:30 | UTC | 2024-03-03 | < 2024-03-06
on March 3 through March 5 | 2025-03-19 14:30 | UTC | 2025-03-03 | < 2025-03-06
from March 3 until today | 2025-03-19 14:30 | UTC | 2025-03-03 | < 2025-03-20
from March 3 to now | 2025-03-19 14:30 | UTC | 2025-03-03 | now
between January and March 2024 | 2025-03-19 14:30 | UTC | 2024-01-01 | < 2024-04-01
from January to February | 2025-03-19 14:30 | UTC | 2025-01-01 | < 2025-03-01
# Quarters, halves
in Q1 | 2025-03-31 23:59 | UTC | 2025-01-01 | < 2025-04-01
in Q2 | 2025-03-31 23:59 | UTC | 2024-04-01 | < 2024-07-01
in Q2 | 2025-04-01 00:00 | UTC | 2025-04-01 | < 2025-07-01
in Q4 | 2025-01-01 00:00 | UTC | 2024-10-01 | < 2025-01-01
Q3 of 2024 | 2025-03-19 14:30 | UTC | 2024-07-01 | < 2024-10-01
2024-Q3 | 2025-03-19 14:30 | UTC | 2024-07-01 | < 2024-10-01
2024 Q4 | 2025-03-19 14:30 | UTC | 2024-10-01 | < 2025-01-01
since Q1 | 2025-03-19 14:30 | UTC | 2025-01-01 | now
between Q2 and Q3 2024 | 2025-03-19 14:30 | UTC | 2024-04-01 | < 2024-10-01
the first quarter of 2024 | 2025-03-19 14:30 | UTC | 2024-01-01 | < 2024-04-01
in the fourth quarter of last year | 2025-03-19 14:30 | UTC | 2024-10-01 | < 2025-01-01
this quarter | 2025-03-31 23:59 | UTC | 2025-01-01 | now
this quarter | 2025-04-01 00:00 | UTC | 2025-04-01 | now
the first half of 2024 | 2025-03-19 14:30 | UTC | 2024-01-01 | < 2024-07-01
in the second half of last year | 2025-03-19 14:30 | UTC | 2024-07-01 | < 2025-01-01
in H2 2024 | 2025-03-19 14:30 | UTC | 2024-07-01 | < 2025-01-01
# Weeks; 2025-03-19 is a Wednesday, 2020 had 53 weeks
2025-W12 | 2025-03-19 14:30 | UTC | 2025-03-17 | < 2025-03-24
in 2025W01 | 2025-03-19 14:30 | UTC | 2024-12-30 | < 2025-01-06
2020-W53 | 2025-03-19 14:30 | UTC | 2020-12-28 | < 2021-01-04
2026-W01 | 2025-03-19 14:30 | UTC | 2025-12-29 | < 2026-01-05
on 2025-W12-3 | 2025-03-19 14:30 | UTC | 2025-03-19 | < 2025-03-20
2020-W53-7 | 2025-03-19 14:30 | UTC | 2021-01-03 | < 2021-01-04
in calendar week 12 of 2025 | 2025-03-19 14:30 | UTC | 2025-03-17 | < 2025-03-24
ISO week 1, 2021 | 2025-03-19 14:30 | UTC | 2021-01-04 | < 2021-01-11
the week of March 5 | 2025-03-19 14:30 | UTC | 2025-03-03 | < 2025-03-10
week of 2024-12-31 | 2025-03-19 14:30 | UTC | 2024-12-30 | < 2025-01-06
since the week of March 5 | 2025-03-19 14:30 | UTC | 2025-03-03 | now
the weekend of March 8 | 2025-03-19 14:30 | UTC | 2025-03-08 | < 2025-03-10
the weekend of March 9 | 2025-03-19 14:30 | UTC | 2025-03-08 | < 2025-03-10
this week | 2025-03-17 00:00 | UTC | 2025-03-17 | now
this week | 2025-03-16 23:59 | UTC | 2025-03-10 | now
this week | 2025-01-01 12:00 | UTC | 2024-12-30 | now
this week | 2024-03-01 12:00 | UTC | 2024-02-26 | now
last week | 2025-01-03 12:00 | UTC | 2024-12-27 12:00 | now
last week | 2024-03-05 12:00 | UTC | 2024-02-27 12:00 | now
last weekend | 2025-03-19 14:30 | UTC | 2025-03-15 | < 2025-03-17
last weekend | 2025-03-17 00:00 | UTC | 2025-03-15 | < 2025-03-17
last weekend | 2025-03-16 12:00 | UTC | 2025-03-08 | < 2025-03-10
last weekend | 2025-01-01 12:00 | UTC | 2024-12-28 | < 2024-12-30
last weekend | 2025-03-03 12:00 | UTC | 2025-03-01 | < 2025-03-03
since last weekend | 2025-03-19 14:30 | UTC | 2025-03-15 | now
this weekend | 2025-03-15 00:00 | UTC | 2025-03-15 | now
this weekend | 2025-03-16 23:59 | UTC | 2025-03-15 | now
last Tuesday | 2025-03-18 12:00 | UTC | 2025-03-11 | < 2025-03-12
last Tuesday | 2025-03-19 00:00 | UTC | 2025-03-18 | < 2025-03-19
last Tuesday | 2025-01-01 12:00 | UTC | 2024-12-31 | < 2025-01-01
on Tuesday | 2025-03-18 12:00 | UTC | 2025-03-18 | < 2025-03-19
Tuesday last week | 2025-03-19 14:30 | UTC | 2025-03-11 | < 2025-03-12
on Friday of last week | 2025-01-01 12:00 | UTC | 2024-12-27 | < 2024-12-28
last week on Sunday | 2025-03-19 14:30 | UTC | 2025-03-16 | < 2025-03-17
Monday this week | 2025-03-16 12:00 | UTC | 2025-03-10 | < 2025-03-11
on Tuesday morning | 2025-03-19 14:30 | UTC | 2025-03-18 | < 2025-03-19
this morning | 2025-03-19 14:30 | UTC | 2025-03-19 | < 2025-03-20
this afternoon | 2025-03-19 14:30 | UTC | 2025-03-19 | < 2025-03-20
yesterday evening | 2025-03-19 14:30 | UTC | 2025-03-18 | < 2025-03-19
# Counts and vague ones
fifteen days ago | 2025-03-19 14:30 | UTC | 2025-03-04 | < 2025-03-05
ninety minutes ago | 2025-03-19 14:30:30 | UTC | 2025-03-19 13:00 | 2025-03-19 13:01
twenty four hours ago | 2025-03-19 14:30 | UTC | 2025-03-18 14:00 | 2025-03-18 15:00
2 weeks ago | 2025-03-19 12:00 | UTC | 2025-03-02 00:00 | 2025-03-09 00:00
a month ago | 2025-03-31 00:00 | UTC | 2025-02-14 00:00 | 2025-03-16 00:00
a few months ago | 2025-03-31 12:00 | UTC | 2024-12-31 12:00 | 2025-03-01 12:00
a couple of weeks ago | 2025-03-31 12:00 | UTC | 2025-03-01 12:00 | 2025-03-24 12:00
a few days ago | 2025-01-03 12:00 | UTC | 2024-12-27 12:00 | 2025-01-02 12:00
recently | 2024-03-30 12:00 | UTC | 2024-02-29 12:00 | now
lately | 2025-01-30 12:00 | UTC | 2024-12-31 12:00 | now
the recent report | 2025-01-30 12:00 | UTC | 2024-12-31 12:00 | now
over the last 48 hours | 2025-01-01 06:00 | UTC | 2024-12-30 06:00 | now
# Berlin: forward at 2:00 on 30 March 2025, back at 3:00 on 26 October 2025
today | 2025-03-30 12:00 | Europe/Berlin | 2025-03-29 23:00Z | < 2025-03-30 22:00Z
today | 2025-10-26 12:00 | Europe/Berlin | 2025-10-25 22:00Z | < 2025-10-26 23:00Z
yesterday | 2025-03-30 12:00 | Europe/Berlin | 2025-03-29 10:00Z | 2025-03-30 10:00Z
1 day ago | 2025-03-31 00:30 | Europe/Berlin | 2025-03-29 23:00Z | < 2025-03-30 22:00Z
last week | 2025-04-02 12:00 | Europe/Berlin | 2025-03-26 10:00Z | 2025-04-02 10:00Z
this week | 2025-03-30 12:00 | Europe/Berlin | 2025-03-23 23:00Z | 2025-03-30 10:00Z
this week | 2025-03-31 00:00 | Europe/Berlin | 2025-03-30 22:00Z | 2025-03-30 22:00Z
this month | 2025-03-31 12:00 | Europe/Berlin | 2025-02-28 23:00Z | 2025-03-31 10:00Z
in March | 2025-04-02 12:00 | Europe/Berlin | 2025-02-28 23:00Z | < 2025-03-31 22:00Z
in October 2025 | 2025-11-02 12:00 | Europe/Berlin | 2025-09-30 22:00Z | < 2025-10-31 23:00Z
in Q1 | 2025-04-02 12:00 | Europe/Berlin | 2024-12-31 23:00Z | < 2025-03-31 22:00Z
last weekend | 2025-04-01 12:00 | Europe/Berlin | 2025-03-28 23:00Z | < 2025-03-30 22:00Z
2025-W13 | 2025-04-01 12:00 | Europe/Berlin | 2025-03-23 23:00Z | < 2025-03-30 22:00Z
2025-W43 | 2025-11-01 12:00 | Europe/Berlin | 2025-10-19 22:00Z | < 2025-10-26 23:00Z
between March 29 and March 31 | 2025-04-02 12:00 | Europe/Berlin | 2025-03-28 23:00Z | < 2025-03-31 22:00Z
in 2025 | 2025-04-02 12:00 | Europe/Berlin | 2024-12-31 23:00Z | < 2025-12-31 23:00Z
2 hours ago | 2025-03-30 04:00 | Europe/Berlin | 2025-03-29 23:30Z | 2025-03-30 00:30Z
# New York: forward on 9 March 2025, back on 2 November 2025
today | 2025-03-09 12:00 | America/New_York | 2025-03-09 05:00Z | < 2025-03-10 04:00Z
today | 2025-11-02 12:00 | America/New_York | 2025-11-02 04:00Z | < 2025-11-03 05:00Z
last Sunday | 2025-11-03 12:00 | America/New_York | 2025-11-02 04:00Z | < 2025-11-03 05:00Z
yesterday afternoon | 2025-03-10 12:00 | America/New_York | 2025-03-09 05:00Z | < 2025-03-10 04:00Z
in 2024 | 2024-12-31 20:00 | America/New_York | 2024-01-01 05:00Z | < 2025-01-01 05:00Z
this year | 2024-12-31 23:00 | America/New_York | 2024-01-01 05:00Z | 2025-01-01 04:00Z
in December | 2024-12-31 23:00 | America/New_York | 2024-12-01 05:00Z | < 2025-01-01 05:00Z
February 29 | 2024-02-28 23:30 | America/New_York | 2020-02-29 05:00Z | < 2020-03-01 05:00Z
since March 9 | 2025-03-10 12:00 | America/New_York | 2025-03-09 05:00Z | 2025-03-10 16:00Z
after March 9 | 2025-03-10 12:00 | America/New_York | 2025-03-10 04:00Z | 2025-03-10 16:00Z
recently | 2025-03-19 12:00 | America/New_York | 2025-02-17 16:00Z | 2025-03-19 16:00Z
# Far from UTC, halves of hours, the southern summer
today | 2025-01-01 08:00 | Asia/Tokyo | 2024-12-31 15:00Z | < 2025-01-01 15:00Z
this year | 2025-01-01 08:00 | Asia/Tokyo | 2024-12-31 15:00Z | 2024-12-31 23:00Z
on March 1 | 2024-03-01 08:00 | Asia/Tokyo | 2024-02-29 15:00Z | < 2024-03-01 15:00Z
this week | 2025-03-17 08:00 | Asia/Tokyo | 2025-03-16 15:00Z | 2025-03-16 23:00Z
today | 2025-01-01 05:00 | Asia/Kolkata | 2024-12-31 18:30Z | < 2025-01-01 18:30Z
today | 2025-01-01 05:00 | Asia/Kathmandu | 2024-12-31 18:15Z | < 2025-01-01 18:15Z
today | 2024-12-31 21:00 | America/St_Johns | 2024-12-31 03:30Z | < 2025-01-01 03:30Z
today | 2025-01-01 13:00 | Pacific/Kiritimati | 2024-12-31 10:00Z | < 2025-01-01 10:00Z
today | 2024-12-31 13:30 | Pacific/Honolulu | 2024-12-31 10:00Z | < 2025-01-01 10:00Z
in December | 2024-12-31 23:59 | Pacific/Honolulu | 2024-12-01 10:00Z | < 2025-01-01 10:00Z
last Monday | 2025-03-18 01:00 | Pacific/Honolulu | 2025-03-17 10:00Z | < 2025-03-18 10:00Z
today | 2025-04-06 12:00 | Pacific/Auckland | 2025-04-05 11:00Z | < 2025-04-06 12:00Z
today | 2025-09-28 12:00 | Pacific/Auckland | 2025-09-27 12:00Z | < 2025-09-28 11:00Z
in Q2 2025 | 2025-09-28 12:00 | Pacific/Auckland | 2025-03-31 11:00Z | < 2025-06-30 12:00Z
today | 2025-04-06 12:00 | Australia/Lord_Howe | 2025-04-05 13:00Z | < 2025-04-06 13:30Z
on November 4 | 2018-11-05 12:00 | America/Sao_Paulo | 2018-11-04 03:00Z | < 2018-11-05 02:00Z
2025-W01 | 2025-03-19 12:00 | America/Los_Angeles | 2024-12-30 08:00Z | < 2025-01-06 08:00Z
tomorrow | 2025-03-08 20:00 | America/Los_Angeles | 2025-03-09 08:00Z | < 2025-03-10 07:00Z
# What stands around an expression
on or after march 3 | 2025-03-18 15:00 | UTC | 2025-03-03 | now
on and after march 3 | 2025-03-18 15:00 | UTC | 2025-03-03 | now
in or after 2023 | 2025-03-18 15:00 | UTC | 2023-01-01 | now
since march 3 | 2025-03-18 15:00 | UTC | 2025-03-03 | now
every day since march 3 | 2025-03-18 15:00 | UTC | 2025-03-03 | now
the first time after March 3 | 2025-03-18 15:00 | UTC | 2025-03-04 | now
Tuesday March 12 | 2025-03-18 15:00 | UTC | 2024-03-12 | < 2024-03-13
Mon 12 March | 2025-03-18 15:00 | UTC | 2018-03-12 | < 2018-03-13
Friday, March 13 | 2025-03-18 15:00 | UTC | 2020-03-13 | < 2020-03-14
monday march 18 | 2025-03-18 15:00 | UTC | 2024-03-18 | < 2024-03-19
on Tuesday 2025-03-18 | 2025-03-18 15:00 | UTC | 2025-03-18 | < 2025-03-19
Tuesday, 18.03.2025 | 2025-03-18 15:00 | UTC | 2025-03-18 | < 2025-03-19
last week, on Monday | 2025-03-18 15:00 | UTC | 2025-03-10 | < 2025-03-11
q1-q3 2024 | 2025-03-18 15:00 | UTC | 2024-01-01 | < 2024-10-01
q1 of last year | 2025-03-18 15:00 | UTC | 2024-01-01 | < 2024-04-01
the end of march 2024 | 2025-03-18 15:00 | UTC | 2024-03-01 | < 2024-04-01
in the beginning of November 2022 | 2025-03-18 15:00 | UTC | 2022-11-01 | < 2022-12-01
at the start of march last year | 2025-03-18 15:00 | UTC | 2024-03-01 | < 2024-04-01
on the morning of March 3 | 2025-03-18 15:00 | UTC | 2025-03-03 | < 2025-03-04
9am yesterday | 2025-03-18 15:00 | UTC | 2025-03-17 | < 2025-03-18
yesterday at 9am | 2025-03-18 15:00 | UTC | 2025-03-17 | < 2025-03-18
yesterday noon | 2025-03-18 15:00 | UTC | 2025-03-17 | < 2025-03-18
yesterday in the morning | 2025-03-18 15:00 | UTC | 2025-03-17 | < 2025-03-18
on Monday after lunch | 2025-03-18 15:00 | UTC | 2025-03-17 | < 2025-03-18
on March 3, 5 people came | 2025-03-18 15:00 | UTC | 2025-03-03 | < 2025-03-04
in March and who was there | 2025-03-18 15:00 | UTC | 2025-03-01 | < 2025-04-01
earlier this week | 2025-03-18 15:00 | UTC | 2025-03-17 | now
three books last month | 2025-03-18 15:00 | UTC | 2025-02-16 15:00 | now
two days last week | 2025-03-18 15:00 | UTC | 2025-03-11 15:00 | now
with error 4711 last week | 2025-03-18 15:00 | UTC | 2025-03-11 15:00 | now
with May last week | 2025-03-18 15:00 | UTC | 2025-03-11 15:00 | now
last week about 3 topics | 2025-03-18 15:00 | UTC | 2025-03-11 15:00 | now
around 3 years ago | 2025-03-18 15:00 | UTC | 2021-09-18 03:00 | 2022-09-18 03:00
nearly two weeks ago | 2025-03-18 15:00 | UTC | 2025-03-01 03:00 | 2025-03-08 03:00
what she has been up to lately | 2025-03-18 15:00 | UTC | 2025-02-16 15:00 | now
the cake she made recently in May 2022 | 2025-03-18 15:00 | UTC | 2022-05-01 | < 2022-06-01
where he travelled to in July 2022 | 2025-03-18 15:00 | UTC | 2022-07-01 | < 2022-08-01
in 2019 is this | 2025-03-18 15:00 | UTC | 2019-01-01 | < 2020-01-01
in 2019 was that | 2025-03-18 15:00 | UTC | 2019-01-01 | < 2020-01-01
in 2019 this happened | 2025-03-18 15:00 | UTC | 2019-01-01 | < 2020-01-01
in 2019 James said | 2025-03-18 15:00 | UTC | 2019-01-01 | < 2020-01-01
in 2024 our process changed | 2025-03-18 15:00 | UTC | 2024-01-01 | < 2025-01-01
the plan made last week for next month | 2025-03-18 15:00 | UTC | 2025-03-11 15:00 | now
Q3 2024 results | 2025-03-18 15:00 | UTC | 2024-07-01 | < 2024-10-01
the March 2024 reports | 2025-03-18 15:00 | UTC | 2024-03-01 | < 2024-04-01
"""

# Each holds words of time, and names none, or none that can be told.
UNNAMED = """
early February
between lunch and dinner
the letter from March 15 to Sarah
between March 15 and the launch
between March 10 and March 3
from December to March 2024
from Monday to Friday
between 2020 and 2022
from 1900 to 2000 ms
March 15 to 20
March 15 - 20
15-20 March
03/04/2025
03.04.2025
1/2/2024
31/31/2024
00.05.2024
31.04.2024
29.02.2025
15.03.25
15.03.
version 1.15.03.2024
20250315
2025-03
in 2003-04
in 2024/25
2021-W53
2025-W00
2025-W12-8
in week 12
week 12 of 2025
in calendar week 54 of 2025
W12
the week of March 9
the weekend of March 12
this weekend
next weekend
in the 2000s
in the 90s
in the nineties
in Q3 FY25
in Q3 of fiscal 2025
the first quarter of the game
in the first half of the match
tonight
tomorrowland
on Monday before last
the week before last
next Tuesday
next month
in three days
two weeks from now
half an hour ago
half a year ago
1.5 hours ago
1,500 days ago
2-3 weeks ago
two or three weeks ago
two to three days ago
3 weeks and 2 days ago
a year and two months ago
1 hour, 30 minutes ago
more than a year ago
less than an hour ago
over two years ago
at least three weeks ago
several weeks ago
many years ago
some time ago
a while ago
long ago
back then
this time last year
the same day last week
the last week of the project
the last weekend before April 10, 2023
the last Friday of the month
the last two days of the trip
the last year of school
in winter
at Christmas
since I joined
since the launch
since the beginning
until March
by 2024
every Tuesday
on weekdays
daily
on the 15th
on the 2nd attempt
at 3pm
at noon
the day we met
once
a hundred days ago
# The ends of ranges and lists, offsets, parts, other years
what happened after this weekend
after the week of March 16, 2025
after the weekend of March 12 2025
summarise it in 2000 words
call me in 1900 seconds
2024 March 15
March 15 '24
March 15, 24
one hundred and five days ago
hundred and five days ago
in march next year
on march 3 next year
a week from today
a week today
today week
three days from yesterday
not after march 3
two weeks after march 3
3 days after 2024-03-01
the day after march 3
a few days after March 3, 2024
on friday the 13th
up to today
as of today
until recently
not recently
before the end of march 2024
since the start of march 2024
from March 2024 on
12th to 14th of March
from 12 to 14 March
between the 12th and 14th of March
on the 12th and 13th of March
march 15th to the 20th
from last monday to last friday
between last monday and last friday
from two weeks ago to a week ago
in 2023 and 2024
in march and april
3, 4 weeks ago
on the 15th of last month
start of last year
since the beginning of last year
first week of last month
early last week
the past year and a half
last week and a half
past week or two
last month or two
second to last week
next to last week
the last two weeks of march 2024
last week in march
# Lists
on monday and tuesday
monday or tuesday last week
on march 3 and 4
on march 3, 4 and 5
on the 3rd and 4th of march 2024
in january, february and march 2024
in q1 and q2
in Q1 2024 and Q2 2024
Q3 or Q4 2024
in 2019, 2020 and 2021
in 2019/2020
on march 3 & march 5
on march 3 or march 5
yesterday and today
last week and this week
last monday and tuesday
two weeks ago and a week ago
two or three days ago
on May 3rd/4th
march 3, march 5 and march 7
last monday, last tuesday
both in march and in april
in either march or april
in the weeks of March 3 and March 10
the weeks of March 3
# Ranges
from yesterday to today
from last week until now
march 3 till yesterday
from march 3 to last week
since march until april
since 2020 through 2022
since monday to wednesday
from monday through wednesday last week
between yesterday and today
between last week and today
between a week and two weeks ago
between two and three weeks ago
two to three weeks ago
2 - 3 weeks ago
from 3 to 4 weeks ago
from 2020 to 2022
from early march to late april
between early march and mid april
march to april
in march-april 2024
in march - april 2024
march 3rd-5th
3rd-5th of march
3rd - 5th of march
from the 3rd to the 5th of march 2024
from the 3rd of march to the 5th
march 3 2024 to 5
after march 3 and before march 10
after march 3 but before march 10
since last tuesday until yesterday
from 10 march on
from march 3 onwards
march 2024 onwards
in 2020 and after
in 2020 or later
in march or earlier
on or before march 3
starting march 3
as of march 3
beginning in march 2024
# Offsets from a point
a week after last tuesday
the week after march 3
the week before last week
the monday after march 3
the friday before march 3
on monday after march 3
the day after last friday
the morning after march 3
two days before yesterday
two days after yesterday
three weeks before last monday
shortly after march 3
right after 2024-03-01
soon after yesterday
a month from last friday
two weeks on from march 3
two weeks into march 2024
ten days prior to march 3
a year before 2024-03-01
a year and a day after march 3 2024
3 business days after march 3
45 minutes before 2024-03-01
a fortnight after march 3
a week to march 3
a week on Monday
two weeks this friday
tuesday week
on tuesday week
monday fortnight
the day following march 3
march 3 plus two weeks
march 3 + 14 days
a week later than march 3
the sunday preceding march 3
on monday two weeks ago
in march two years ago
on march 3 two years ago
a year ago today
a week ago yesterday
a week ago on monday
two weeks ago tuesday
one year ago in march
christmas two years ago
the same week a year ago
three mondays ago
on the third monday ago
# Parts of a span
the first half of last month
the second half of march 2024
at the end of last year
the last day of february 2024
the first monday of march 2024
the first monday in march 2024
on the last friday in march
the 2nd week of march 2024
the third week in march
the third weekend of march 2024
the first ten days of march 2024
the last days of march 2024
the opening week of march 2024
last year's march
last year's first quarter
last year's christmas
last month's 15th
last week's monday
last year in Q1
last year in the summer
last year at christmas
last year, in early january
last month on the 15th
last month, the 15th
the 15th last month
late last year
mid last month
mid-last week
earlier last year
early in the last year
summer of last year
in the summer of last year
h2 last year
the night of march 3
night of last friday
early yesterday
yesterday at midnight
after 9am yesterday
since 9am yesterday
the end of yesterday
the rest of this week
later this week
the start of this year
the first day of this month
the turn of 2024
the eve of march 3
the middle of 2024
a third of last week
in the last quarter of 2024
in the last half of 2024
in the last month of 2024
the last month in 2024
the final week of 2024-03
halfway through march 2024
partway through last week
half way into last month
in the first few days of last month
in the course of the first week of march 2024
# What it is not
not on march 3
not in 2024
not since march 3
never in march
except in march
except for last week
excluding march 3
anything but last week
everything but march 3
no later than march 3
no earlier than march 3
not before march 3
not until march 3
other than yesterday
outside march 2024
outside of last week
before or after march 3
instead of last tuesday
isn't on march 3
wasn't last week
not just last week
not necessarily on monday
in 2024 but not in march
in 2024 except march
last week except monday
apart from yesterday
without last week
neither in march nor in april
rather than in march
# Contradictions, other years
on monday 2025-03-18
on monday, 18.03.2025
march 18, monday
march 12 (tuesday)
today, monday
yesterday march 3
february 31 2024
on tuesday last month
on friday next week
last friday the 13th
tuesday the 4th
monday 12
on monday 10.3.
on monday 10/3
in march 12
in march '24
in Q3 '24
March '24
15 March '24
March 15 of '24
15.03.'24
in march of that year
in march of the same year
in march every year
every march
on march 15 of every year
every year on march 15
each year in march
this year last march
next march 3
next year on march 3
in march 2024 or 2023
today last year
this day last year
march 3 last month
march 3 that year
tomorrow last week
in march the following year
# Numbers that are no years
in 2000 different words
in a 2000 word essay
in 2000-word chunks
after 2000 steps
by 2000 people
since 2000 commits
in 2000 BC
in 1999 of 2000 cases
in 2000 or fewer words
in 2000 or so words
in 2000 meters
in 2000m
in 2000 km
in 2000 m
in 2000 $
in 2000€
in 2000 USD
in 2000 characters or less
in 1950 square feet
until 2000 hours
in 2000 easy steps
in exactly 2000 words
in under 2000 words
in 2000 calories
after 1984 pages
in 1900 to 2000 words
in about 2000 words
in version 2024.1
during 2000 requests
throughout 2000 files
after 1920x1080
in 1080 by 1920
in 2000 x 3
last 3 of 5 weeks
last 2 or 3 weeks
last two to three weeks
last couple or few weeks
one and a half weeks ago
two and a half years ago
a week and a half ago
a year or two ago
a week or so ago
two dozen days ago
two hundred and one days ago
two hundred one days ago
thirty and one days ago
a thousand and one days ago
1 000 days ago
1 200 days ago
-3 days ago
3.5 weeks ago
3,5 weeks ago
1/2 week ago
1 1/2 weeks ago
three quarters of an hour ago
once every 3 days ago
at most 3 weeks ago
not two weeks ago
up to two weeks ago
within two weeks ago
more than two weeks ago
# Parts, offsets and bounds
all but the last week
every day but monday last week
in late march or early april
the past few weeks or months
last month minus a week
2024-03-01..2024-03-05
2024-03-01 +/- 3 days
end of day yesterday
in 2000 rpm
in 2000 line chunks
2024-03-01 and 2024-03-05
the week ending march 15
thursday/friday last week
last week (mon to wed)
last week mon-fri
3rd/4th march
3 and 4 march 2024
not tuesday, wednesday of last week
in 2019 dollars
over the past year or more
next week on Monday
next week, on Monday
the following week on tuesday
that year in march
years ago in march
several years ago, in march
two years ago in march
until the end of march
from the beginning of march to the end of april
from the end of march until today
between the start of march and the end of april
by the middle of march
end of april and start of may
up to last week
since the end of march 2024
after the end of march 2024
in the middle of next march
at the beginning of march next year
at the end of march or april
2024 in q3
"""


def seconds(text: str, zone: dt.tzinfo) -> float:
    if text.endswith("Z"):
        text, zone = text[:-1], dt.timezone.utc
    return dt.datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


ROWS = [
    tuple(part.strip() for part in line.split("|")) for line in NAMED.strip().splitlines() if not line.startswith("#")
]
PHRASES = [line for line in UNNAMED.strip().splitlines() if not line.startswith("#")]


def test_the_tables_are_as_long_as_promised() -> None:
    assert len(set(ROWS)) == len(ROWS) >= 150
    assert len(set(PHRASES)) == len(PHRASES) >= 60


@pytest.mark.parametrize(("text", "now", "zone", "start", "end"), ROWS)
def test_named(text: str, now: str, zone: str, start: str, end: str) -> None:
    here = ZoneInfo(zone)
    moment = seconds(now, here)
    if end == "now":
        last = moment
    elif end.startswith("<"):
        last = math.nextafter(seconds(end[1:].strip(), here), -math.inf)
    else:
        last = seconds(end, here)
    for said in (text, f"what did Ana say about tea {text}?"):
        found = parse_when(said, moment, timezone=here)
        assert found is not None, said
        assert (found.start, found.end) == (seconds(start, here), last), said


@pytest.mark.parametrize("text", PHRASES)
def test_unnamed(text: str) -> None:
    assert parse_when(text, seconds("2025-03-19 14:30", dt.timezone.utc)) is None
