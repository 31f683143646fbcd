"""Places that Spark reaches through Hadoop: nothing but Spark's configuration is needed."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from tests.store.conformance import check_place, check_store, check_that_one_writer_wins

import tocsin.spark as tsp
from tocsin.errors import StoreError
from tocsin.spark.hadoop import HadoopPlace, open_place
from tocsin.storage.local import LocalPlace
from tocsin.store.subscription_store import SubscriptionStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_url_of_hadoop_is_a_place(spark: SparkSession, hadoop_url: str) -> None:
    place = open_place(f"{hadoop_url}/deep/folder")
    assert isinstance(place, HadoopPlace)
    check_place(place)
    check_store(open_place(f"{hadoop_url}/store"))
    assert isinstance(open_place("/local/folder"), LocalPlace)


def test_of_several_writers_on_hadoop_one_commits(spark: SparkSession, hadoop_url: str) -> None:
    check_that_one_writer_wins(HadoopPlace(f"{hadoop_url}/race", spark.sparkContext), 2)


def test_what_hadoop_refuses_is_an_error_of_the_system(
    spark: SparkSession, hadoop_url: str
) -> None:
    with pytest.raises(StoreError, match="Hadoop cannot use the URL"):
        HadoopPlace("nothing://host/folder", spark.sparkContext)
    place = HadoopPlace(hadoop_url, spark.sparkContext)
    place.commit_once("file", b"content")
    with pytest.raises(OSError, match="file"):
        HadoopPlace(f"{hadoop_url}/file", spark.sparkContext).commit_once("inner", b"content")
    assert HadoopPlace(f"{hadoop_url}/file", spark.sparkContext).is_file()


def test_in_a_task_a_url_of_hadoop_is_reached_through_fsspec(
    spark: SparkSession, hadoop_url: str
) -> None:
    with pytest.raises(StoreError, match="the URL cannot be used"):  # there is no libhdfs here
        pickle.loads(pickle.dumps(HadoopPlace(hadoop_url, spark.sparkContext)))


def test_a_frame_is_matched_against_a_store_that_only_hadoop_reaches(
    spark: SparkSession, hadoop_url: str
) -> None:
    """Tasks have no file system there: Spark sends them the files of the version."""
    url = f"{hadoop_url}/store"
    store = SubscriptionStore.create(open_place(url))
    store.subscribe_many({"id": ["a", "b"], "where": ["x = 1", "x > 0"]})
    events = spark.createDataFrame([(1,), (2,)], "x long")

    def matches() -> list[tuple[int, str]]:
        return sorted((row["x"], row["subscription"]) for row in tsp.match(events, url).collect())

    assert matches() == [(1, "a"), (1, "b"), (2, "b")]
    store.unsubscribe("b")
    assert matches() == [(1, "a")]
    earlier = tsp.match(events, url)
    store.compact(grace=0)
    store.subscribe("c", "x = 2")
    assert earlier.count() == 1, "a vacuum does not remove what was sent"
    assert matches() == [(1, "a"), (2, "c")]
