"""`spark.readStream` and `spark.read`: batches of queues, in slices, decoded."""
