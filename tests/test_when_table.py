"""Time expressions and the intervals that they name, written out by hand: calendar borders, clock changes, zones."""

from __future__ import annotations

import datetime as dt
import math
from zoneinfo import ZoneInfo

import pytest

from fanrank.engine.when import parse_when

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
over the weekend
next weekend
in the 2000s
in the 90s
in the nineties
in Q3 FY25
in Q3 of fiscal 2025
the first quarter of the game
in the first half of the match
last quarter
tonight
last night
tomorrowland
yesterday night
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
last summer
in winter
at Christmas
since I joined
since the launch
since the beginning
before last Tuesday
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
"""


def seconds(text: str, zone: dt.tzinfo) -> float:
    if text.endswith("Z"):
        text, zone = text[:-1], dt.timezone.utc
    return dt.datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


ROWS = [
    tuple(part.strip() for part in line.split("|")) for line in NAMED.strip().splitlines() if not line.startswith("#")
]
PHRASES = UNNAMED.strip().splitlines()


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
