-- Goes on with a reservation in a leased ick shard that is larger than one script may make.
-- KEYS: version, producer set, consumer set, held, attempts, lease, mark. ARGV: the reservation's token, the
-- lease's token, its time to live in ms, the mark that the lease was taken under, 1 to be told how many
-- members in place of which, or 0, how many to reserve, what is left to be done, how many have been returned.
-- Returns { { member, score, ... } or how many, what is left to be done ('' for nothing) }; nil, with nothing
-- changed, if the lease or the reservation does not hold any more, or where the mark is newer.
--@include shard
local problem, current, lease = open_held(ARGV[2])
if not lease or current ~= ARGV[1] then
  return problem or false
end
local wrong, state = mark_state(KEYS[7], ARGV[4])
if wrong or state == 'newer' then
  return wrong or false
end
extend_if_short(KEYS[6], lease, ARGV[3])
local list, left = reserve_on(tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8]))
return { ARGV[5] == '1' and #list / 2 or list, left }
