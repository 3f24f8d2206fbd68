-- Adds members with scores to an ick shard; the lower of two scores wins.
-- KEYS: version, producer set, consumer set, mark. ARGV: the caller's mark, score, member, ... (at
-- most 1,000 pairs). Returns { new members, members whose score became lower }; nil, with nothing
-- changed, if the caller's layout is out of date.
--@include shard
return add_marked({ unpack(ARGV, 2) })
