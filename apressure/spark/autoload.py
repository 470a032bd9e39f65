"""Becomes the wheel's top-level module `pyspark_apressure`: Spark registers what it finds in modules of such names."""

from apressure.spark.datasource import DefaultSource

__all__ = ["DefaultSource"]
