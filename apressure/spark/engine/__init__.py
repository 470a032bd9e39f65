"""The steps of the source and of the sink on the server, and their scripts. No module here needs pyspark."""
