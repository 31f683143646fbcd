"""Places that Spark reaches through Hadoop: nothing but Spark's configuration is needed."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from tests.store.conformance import check_place, check_store, check_that_one_writer_wins

from tocsin.errors import StoreError
from tocsin.spark.hadoop import HadoopPlace, open_place
from tocsin.storage.local import LocalPlace

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
