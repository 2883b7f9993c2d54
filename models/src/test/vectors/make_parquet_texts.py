"""Writes the files of Parquet in src/test/resources/text: python make_parquet_texts.py (pyarrow 26)."""
import os

import pyarrow as pa
import pyarrow.parquet as pq

folder = os.path.join(os.path.dirname(__file__), "..", "resources", "text")
os.makedirs(folder, exist_ok=True)
texts = pa.table({"id": list(range(30)), "text": [f"number {i} – Größe" for i in range(30)]})
pq.write_table(texts, f"{folder}/texts.parquet", compression="snappy", row_group_size=8)
pairs = pa.table({"prompt": ["The dog", "A fox"], "completion": [" jumps", " sleeps"], "tags": [["a", "b"], []]})
pq.write_table(pairs, f"{folder}/pairs.parquet", compression="gzip")
pq.write_table(pa.table({"text": ["one", None, "three"]}), f"{folder}/hole.parquet", compression="none")
pq.write_table(pa.table({"text": [1, 2], "prompt": ["a", "b"]}), f"{folder}/numbers.parquet", compression="none")
