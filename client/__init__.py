"""`fanrank.Client` and `fanrank.AsyncClient`: an engine behind a server, with the engine's verbs, answers and errors.

``calls.py`` says what each verb sends, ``answers.py`` reads what comes back, ``sending.py`` holds keys, limits of time
and retries, and ``synchronous.py`` and ``asynchronous.py`` bring the two together over httpx.
"""
