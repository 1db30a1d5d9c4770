"""LangChain's retriever over an engine. A batch stays whole: ``retriever.batch(questions)`` is one search."""

from __future__ import annotations

import asyncio
import sys
import uuid
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..engine.errors import MissingExtraError
from .langchain_documents import Request, check_texts, make_records, parts_of
from .shared import AnyEngine, open_engine

try:
    from langchain_core.callbacks.manager import (
        AsyncCallbackManager,
        AsyncCallbackManagerForRetrieverRun,
        CallbackManager,
        CallbackManagerForRetrieverRun,
    )
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import RunnableConfig, ensure_config
    from langchain_core.runnables.config import get_config_list
    from pydantic import ConfigDict, Field
except ImportError as error:
    raise MissingExtraError("langchain-core", "langchain") from error

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self


class BatchRetriever(BaseRetriever):
    """A retriever whose batch is one search. A subclass says how a batch is searched."""

    @abstractmethod
    def search_batch(self, queries: Sequence[str], **options: Any) -> list[list[Document]]:
        """The documents of each query, in one search. `options` are the keywords of `invoke` and `batch`."""

    @abstractmethod
    async def asearch_batch(self, queries: Sequence[str], **options: Any) -> list[list[Document]]:
        """As `search_batch`, awaited."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        options.pop("verbose", None)  # LangChain's own
        return self.search_batch([query], **options)[0]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **options: Any
    ) -> list[Document]:
        options.pop("verbose", None)
        (found,) = await self.asearch_batch([query], **options)
        return found

    def batch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """The documents of each input: what `invoke` gives for each, in one search.

        `config` is one for all inputs, or one for each. The callbacks of each input's config see its start and its end.
        ``max_concurrency`` says nothing here, as there is one search. `kwargs` are options of the search.

        If the batch fails, its error is that of every input, and is raised. With `return_exceptions` the inputs are
        then searched one by one, and an exception takes the place of each answer that failed.
        """
        if not inputs:
            return []
        managers, names, run_id = self._configure(CallbackManager, inputs, config, kwargs)
        runs = [
            manager.on_retriever_start(None, text, name=name, run_id=None if position else run_id)
            for position, (manager, name, text) in enumerate(zip(managers, names, inputs, strict=bool(managers)))
        ]
        try:
            answers: list[Any] = self.search_batch(inputs, **kwargs)
        except Exception as error:
            if not return_exceptions:
                for run in runs:
                    run.on_retriever_error(error)
                raise
            answers = [error] if len(inputs) == 1 else [self._search_alone(text, kwargs) for text in inputs]
        for run, answer in zip(runs, answers, strict=bool(runs)):
            if isinstance(answer, Exception):
                run.on_retriever_error(answer)
            else:
                run.on_retriever_end(answer)
        return answers

    async def abatch(
        self,
        inputs: list[str],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[Document]]:
        """As `batch`, awaited. Batches of different tasks share launches."""
        if not inputs:
            return []
        managers, names, run_id = self._configure(AsyncCallbackManager, inputs, config, kwargs)
        runs = await asyncio.gather(
            *(
                manager.on_retriever_start(None, text, name=name, run_id=None if position else run_id)
                for position, (manager, name, text) in enumerate(zip(managers, names, inputs, strict=bool(managers)))
            )
        )
        try:
            answers: list[Any] = await self.asearch_batch(inputs, **kwargs)
        except Exception as error:
            if not return_exceptions:
                await asyncio.gather(*(run.on_retriever_error(error) for run in runs))
                raise
            alone = (self.asearch_batch([text], **kwargs) for text in inputs)
            answers = (
                [error]
                if len(inputs) == 1
                else [
                    answer if isinstance(answer, BaseException) else answer[0]
                    for answer in await asyncio.gather(*alone, return_exceptions=True)
                ]
            )
        ended = [
            run.on_retriever_error(answer) if isinstance(answer, Exception) else run.on_retriever_end(answer)
            for run, answer in zip(runs, answers, strict=bool(runs))
        ]
        await asyncio.gather(*ended)
        return answers

    def batch_as_completed(self, inputs: Any, config: Any = None, **kwargs: Any) -> Iterator[tuple[int, Any]]:
        """The position and the answer of each input, in order: one search completes all. Arguments as `batch`."""
        yield from enumerate(self.batch(list(inputs), config, **kwargs))

    async def abatch_as_completed(
        self, inputs: Any, config: Any = None, **kwargs: Any
    ) -> AsyncIterator[tuple[int, Any]]:
        """As `batch_as_completed`, awaited."""
        for position, answer in enumerate(await self.abatch(list(inputs), config, **kwargs)):
            yield position, answer

    def _search_alone(self, text: str, options: dict[str, Any]) -> list[Document] | Exception:
        try:
            return self.search_batch([text], **options)[0]
        except Exception as error:
            return error

    def _configure(
        self,
        kind: type[CallbackManager] | type[AsyncCallbackManager],
        inputs: Sequence[str],
        config: RunnableConfig | Sequence[RunnableConfig] | None,
        kwargs: dict[str, Any],
    ) -> tuple[list[Any], list[str], uuid.UUID | None]:
        """The callback manager and the name of each input's run, and the first run's id.

        Without callbacks there are none: nobody would see the runs. One config for all is read once. LangChain's own
        options are taken out of `kwargs`.
        """
        verbose, run_id = kwargs.pop("verbose", False), kwargs.pop("run_id", None)
        if config is None or isinstance(config, Mapping):
            configs = [ensure_config(config)]
        else:
            configs = get_config_list(config, len(inputs))
        managers = [
            kind.configure(
                one.get("callbacks"),
                None,
                verbose=verbose,
                inheritable_tags=one.get("tags"),
                local_tags=self.tags,
                inheritable_metadata={**(one.get("metadata") or {}), **self._get_ls_params(**kwargs)},
                local_metadata=self.metadata,
            )
            for one in configs
        ]
        if not any(manager.handlers for manager in managers):
            return [], [], None
        names = [one.get("run_name") or self.get_name() for one in configs]
        repeat = len(inputs) // len(configs)
        return managers * repeat, names * repeat, run_id


class FanrankRetriever(BatchRetriever):
    """A retriever over an engine: ``FanrankRetriever(engine=engine, k=5)``.

    `engine` is an `Engine`, a `Namespace`, the path of a directory, or None for an engine in memory. `k` is the number
    of documents. `filter` is an expression on the metadata (``col("topic") == "billing"``), its JSON form, or the form
    of another library that `dialect` names (`parse_filter`). `strategy` is as in `Engine.search`; None: ``auto`` where
    the engine has vectors, else ``bm25``. Each document has its score in ``metadata[score_key]``, in the place of what
    its record has there; None: no score. `search_options` are further options of the search: `QUERY_OPTIONS` and
    `SEARCH_OPTIONS`.

    All of these but the engine are keywords of `invoke`, `ainvoke`, `batch` and `abatch` too, and then hold for that
    call: ``retriever.invoke("late fee", k=2, half_life="7d", now=time.time())``.

    Raises `ParameterError` for an unknown option, and as `Engine.search`.
    """

    engine: Any = None
    k: int = 4
    filter: Any = None
    dialect: str | None = None
    strategy: Any = None
    score_key: str | None = "score"
    search_options: dict[str, Any] = Field(default_factory=dict)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __init__(self, engine: AnyEngine = None, **fields: Any) -> None:
        # Not in a validator: pydantic would hide the named errors in one of its own.
        super().__init__(**{**fields, "engine": open_engine(engine)})
        self._request({})

    @classmethod
    def from_engine(cls, engine: AnyEngine, **fields: Any) -> Self:
        """A retriever over an engine; `fields` are those of the class."""
        return cls(engine=engine, **fields)

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        ids: Sequence[str | None] | None = None,
        *,
        engine: AnyEngine = None,
        **fields: Any,
    ) -> Self:
        """A retriever over these texts, which are added to `engine`, or replace its records of the same ids.

        A text without an id gets a random one. `fields` are those of the class. Raises as `Engine.upsert`.
        """
        retriever = cls(engine=engine, **fields)
        retriever.engine.upsert(make_records(texts, metadatas, ids))
        return retriever

    @classmethod
    def from_documents(cls, documents: Iterable[Document], *, engine: AnyEngine = None, **fields: Any) -> Self:
        """A retriever over these documents, as `from_texts`."""
        batch = list(documents)
        texts, metadatas, ids = parts_of(batch)
        return cls.from_texts(texts, metadatas, ids, engine=engine, **fields)

    def add_documents(self, documents: Iterable[Document]) -> list[str]:
        """Add documents, or replace those of the same ids; their ids. One durable write. Raises as `Engine.upsert`."""
        records = make_records(*parts_of(list(documents)))
        self.engine.upsert(records)
        return [record.id for record in records]

    async def aadd_documents(self, documents: Iterable[Document]) -> list[str]:
        """As `add_documents`, awaited."""
        records = make_records(*parts_of(list(documents)))
        await self.engine.aupsert(records)
        return [record.id for record in records]

    def search_batch(self, queries: Sequence[str], **options: Any) -> list[list[Document]]:
        """The documents of each query, in one search. `options` are the fields of the class, but for the engine."""
        k, request = self._request(options)
        return request.documents(self.engine.search(request.queries(check_texts(queries)), k, **request.keywords))

    async def asearch_batch(self, queries: Sequence[str], **options: Any) -> list[list[Document]]:
        """As `search_batch`, awaited; concurrent callers share a launch."""
        k, request = self._request(options)
        asked = request.queries(check_texts(queries))
        return request.documents(await self.engine.asearch(asked, k, **request.keywords))

    def _request(self, options: dict[str, Any]) -> tuple[int, Request]:
        own = {name: getattr(self, name) for name in ("k", "filter", "dialect", "strategy", "score_key")}
        merged = {**own, **self.search_options, **options}
        k, strategy = merged.pop("k"), merged.pop("strategy")
        if strategy is None:
            strategy = "bm25" if self.engine.pin is None else "auto"
        return k, Request.of(strategy=strategy, **merged)
