"""A transformation of your own between two streams: results in, enriched results out, each once.

ANGARIUM_REDIS_URL=redis://127.0.0.1:6379 python examples/lake_enrich/enrich.py
"""

import os
import sys

from pyspark.sql import functions as f

import angarium.lake

url = os.environ["ANGARIUM_REDIS_URL"]
spark = angarium.lake.session(master="local[2]")
source = spark.readStream.format("redis-stream").option("url", url)
results = source.option("keys", "messages:processed").load()

enriched = results.select(
    f.col("fields.message_id").alias("message_id"),
    f.upper("fields.status").alias("status"),
    f.col("timestamp").cast("date").alias("day"),
)

sink = enriched.writeStream.format("redis-stream").option("url", url)
sink = sink.option("checkpointLocation", os.environ.get("CHECKPOINT", ".angarium/enrich"))
once = {"availableNow": True} if "--once" in sys.argv else {"processingTime": "1 second"}
sink.trigger(**once).start("messages:enriched").awaitTermination()
