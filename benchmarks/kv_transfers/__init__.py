"""Parts of the benchmark that holds engines which hand KV over against engines which do both phases."""
