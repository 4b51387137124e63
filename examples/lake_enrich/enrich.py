"""A transformation of your own between two streams: results in, enriched results out, each once.

ANGARIUM_REDIS_URL=redis://127.0.0.1:6379 angarium lake run --app enrich:app
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from angarium import Angarium

app = Angarium()


@app.stream("messages:enriched", of="results")
def enriched(results: DataFrame) -> DataFrame:
    status = f.get_json_object("fields", "$.status")
    return results.select("message_id", f.upper(status).alias("status"), f.col("date").alias("day"))
