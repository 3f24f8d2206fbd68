"""The options of ``format("workstealing.log")``, without a JVM."""

from __future__ import annotations

import pickle

import pytest

from workstealing.errors import ConfigurationError
from workstealing.spark.making import ClientSettings
from workstealing.spark.sources.log_options import EARLIEST, LATEST, LogOptions
from workstealing.spark.sources.options import Positions


class TestParsing:
    def test_defaults(self) -> None:
        options = LogOptions.parse({"logs": "activity"})
        assert options == LogOptions(("activity",), ClientSettings())
        assert options.positions() == (EARLIEST, LATEST)
        assert (options.tasks, options.batch_size) == (16, 100_000)
        assert (options.is_text, options.fails_on_loss) == (False, True)
        assert pickle.loads(pickle.dumps(options)) == options

    def test_all(self) -> None:
        options = LogOptions.parse(
            {
                "path": "a, b",
                "VALUES": "string",
                "startingoffset": '{"a": -10, "b": "latest"}',
                "endingOffset": "17",
                "failOnDataLoss": "False",
                "partitions": "3",
                "maxOffsetsPerTrigger": "50",
                "block": "10",
                "exactlyOnce": "true",
                "query": "q",
                "batch": "0",
                "client": "my.module:make",
                "checkpointLocation": "/somewhere",
            }
        )
        assert options == LogOptions(
            logs=("a", "b"),
            client=ClientSettings("my.module:make"),
            values="string",
            starting=Positions("earliest", (("a", -10), ("b", "latest"))),
            ending=Positions(17),
            fail_on_data_loss=False,
            partitions=3,
            max_offsets_per_trigger=50,
            block=10,
            exactly_once=True,
            query="q",
            batch=0,
        )
        assert (options.tasks, options.batch_size) == (3, 50)
        assert (options.is_text, options.fails_on_loss) == (True, False)
        starting, ending = options.positions()
        assert [starting.of(log) for log in "abc"] == [-10, "latest", "earliest"]
        assert ending.of("a") == 17

    @pytest.mark.parametrize("text", ["a,b", " a , b ", '["a", "b"]', "['a', 'b']", ' ["a","b"]'])
    def test_lists_of_logs(self, text: str) -> None:
        assert LogOptions.parse({"logs": text}).logs == ("a", "b")

    def test_a_name_with_a_comma_goes_into_a_list(self) -> None:
        assert LogOptions.parse({"logs": '["a,b"]'}).logs == ("a,b",)

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"logs": "a", "path": "b"}, "both the option 'logs' and a path"),
            ({"logs": ""}, "'logs' is empty"),
            ({"logs": "a,,b"}, "holds no names of logs"),
            ({"logs": "[1]"}, "holds no names of logs"),
            ({"logs": "[a]"}, "holds no names of logs"),
            ({"logs": "[]"}, "has 0 names"),
            ({"logs": "a,b,a"}, "'a' is named twice"),
            ({"logs": "redis://secret@host"}, "holds a URL"),
            ({"logs": "a", "log": "b", "x": "y"}, "unknown options: 'log', 'x'"),
            ({"logs": "a", "values": "json"}, "give binary or string"),
            (
                {"logs": "a", "startingOffset": "first"},
                "is 'first': give earliest, latest,",
            ),
            ({"logs": "a", "startingOffset": "1.5"}, "'startingOffset' is '1.5'"),
            ({"logs": "a", "startingOffset": "true"}, "'startingOffset' is 'true'"),
            ({"logs": "a", "startingOffset": '{"a": [1]}'}, "'startingOffset' is "),
            ({"logs": "a", "startingOffset": '{"b": 1}'}, "names 'b'"),
            (
                {"logs": "a", "endingOffset": "earliest"},
                "is 'earliest': give latest, the",
            ),
            ({"logs": "a", "failOnDataLoss": "maybe"}, "give true or false"),
            ({"logs": "a", "partitions": "0"}, "'partitions' is '0'"),
            ({"logs": "a", "maxOffsetsPerTrigger": "all"}, "'maxOffsetsPerTrigger' is 'all'"),
            ({"logs": "a", "block": "0"}, "'block' is '0'"),
            ({"logs": "a", "batch": "-1"}, "'batch' is '-1'"),
            ({"logs": "a", "client": "a:b", "url": "redis://x"}, "both a client and a url"),
        ],
    )
    def test_what_is_wrong_is_said(self, options: dict[str, str], problem: str) -> None:
        with pytest.raises(ConfigurationError, match=problem) as caught:
            LogOptions.parse(options)
        assert str(caught.value).startswith("format 'workstealing.log': ")

    def test_no_secret_is_shown(self) -> None:
        url = "redis://user:secret@host"
        assert "secret" not in repr(LogOptions.parse({"logs": "a", "url": url}))
        with pytest.raises(ConfigurationError) as caught:
            LogOptions.parse({"logs": url})
        assert "secret" not in str(caught.value)


def parsed(**options: str) -> LogOptions:
    return LogOptions.parse({"logs": "a", **options})


class TestUse:
    def test_reads(self) -> None:
        for options, is_stream, problem in (
            (LogOptions.parse({}), True, "'logs' is missing"),
            (parsed(block="5"), False, "'block' is for writing, and this is a read"),
            (parsed(exactlyOnce="false"), True, "'exactlyOnce' is for writing"),
            (parsed(endingOffset="5"), True, "'endingOffset' is for read, not for readStream"),
            (parsed(maxOffsetsPerTrigger="5"), False, "'maxOffsetsPerTrigger' is for readStream"),
            (parsed(startingOffset="5", endingOffset="4"), False, "startingOffset 5 is behind"),
            (parsed(startingOffset="-4", endingOffset="-5"), False, "startingOffset -4 is behind"),
        ):
            with pytest.raises(ConfigurationError, match=problem):
                options.for_reading(is_stream)
        for options, is_stream in (
            (parsed(startingOffset="5", endingOffset="5"), False),
            (parsed(startingOffset="5", endingOffset="-5"), False),
            (parsed(startingOffset="5", maxOffsetsPerTrigger="5"), True),
        ):
            assert options.for_reading(is_stream) is options

    def test_writes(self) -> None:
        for options, is_stream, has_column, problem in (
            (parsed(partitions="5"), True, False, "'partitions' is for reading"),
            (parsed(failOnDataLoss="true"), False, False, "'failOnDataLoss' is for reading"),
            (LogOptions.parse({"logs": "a,b"}), False, False, "2 logs are given"),
            (parsed(), True, True, "both the option 'logs'"),
            (LogOptions.parse({}), True, False, "nothing says where rows go"),
            (parsed(query="q"), True, False, "'query' is for write: writeStream has a query"),
            (parsed(query="q"), False, False, "one of the options 'query' and 'batch' is missing"),
            (parsed(batch="1"), False, False, "one of the options 'query' and 'batch' is missing"),
            (parsed(exactlyOnce="true"), False, False, "'exactlyOnce' is True: leave it out"),
            (
                parsed(query="q", batch="1", exactlyOnce="false"),
                *(False, False, "'exactlyOnce' is False: leave it out"),
            ),
        ):
            with pytest.raises(ConfigurationError, match=problem):
                options.for_writing(is_stream, has_column)
        for options, is_stream, has_column in (
            (parsed(block="5", exactlyOnce="true"), True, False),
            (parsed(query="q", batch="0"), False, False),
            (LogOptions.parse({"block": "5"}), True, True),
        ):
            assert options.for_writing(is_stream, has_column) is options
