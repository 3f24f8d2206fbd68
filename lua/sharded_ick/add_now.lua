-- Adds members to an ick shard with the server's time, in seconds with fractions, as their score.
-- KEYS: version, producer set, consumer set, mark. ARGV: the caller's mark, members (at most 1,000).
-- Returns as sharded_ick/add does.
--@include shard
return add_marked(with_time(2))
