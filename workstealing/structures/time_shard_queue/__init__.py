"""TimeShardQueue: a queue by due time whose producers and consumers never meet."""
