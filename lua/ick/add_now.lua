-- Adds members to an Ick with the server's time, in seconds with fractions, as their score.
-- KEYS: version, producer set, consumer set. ARGV: members (at most 1,000).
-- Returns { new members, members whose score became lower }.
--@include ick
return add_pairs(with_time(1))
