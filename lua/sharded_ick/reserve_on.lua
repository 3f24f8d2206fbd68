-- Goes on with a reservation in a leased ick shard that is larger than one script may make.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] held
--   KEYS[5] attempts
--   KEYS[6] lease
--   KEYS[7] mark
--   KEYS[8] waiting
--   KEYS[9] terms
--   ARGV[1] the reservation's token
--   ARGV[2] the lease's token
--   ARGV[3] its time to live in ms
--   ARGV[4] the mark that the lease was taken under
--   ARGV[5] 1 to be told only how many members, or 0
--   ARGV[6] how many to reserve
--   ARGV[7] what is left to be done
--   ARGV[8] how many have been returned
-- Returns { the text of this piece, or '', how many members it lists, what is left to be done ('' for nothing) };
-- nil, with nothing changed, if the lease or the reservation does not hold any more, or where the mark is
-- newer.
--@include shard
local version, pset, cset, held, attempts, lease_key = unpack(KEYS)
local problem, current, lease = open_held(version, pset, cset, held, attempts, lease_key, ARGV[2])
if not lease or current ~= ARGV[1] then
  return problem or false
end
local wrong, state = mark_state(KEYS[7], ARGV[4])
if wrong or state == 'newer' then
  return wrong or false
end
local waits = count_waiting(KEYS[8], KEYS[9])
if type(waits) == 'table' then
  return waits
end
extend_if_short(lease_key, lease, ARGV[3])
local n, first = tonumber(ARGV[6]), tonumber(ARGV[8])
local text, size, left = reserve_on(pset, cset, held, n, ARGV[7], first, waits, KEYS[8], KEYS[9])
return { ARGV[5] == '1' and '' or text, size, left }
