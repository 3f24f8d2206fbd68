-- Goes on with a reservation that is larger than one script may make.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] held
--   KEYS[5] attempts
--   KEYS[6] waiting
--   KEYS[7] terms
--   ARGV[1] its token
--   ARGV[2] how many to reserve
--   ARGV[3] what is left to be done
--   ARGV[4] how many members have been returned
-- Returns { the text of this piece, how many members it lists, what is left to be done ('' for nothing) };
-- nil, with nothing changed, if another reservation holds.
--@include reservation
local version, pset, cset, held, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local current, waits = current_token(held, attempts), count_waiting(KEYS[6], KEYS[7])
local problem = type(current) == 'table' and current
  or type(waits) == 'table' and waits
  or refuse(version, pset, cset, false)
if problem or current ~= ARGV[1] then
  return problem or false
end
local n, first = tonumber(ARGV[2]), tonumber(ARGV[4])
return { reserve_on(pset, cset, held, n, ARGV[3], first, waits, KEYS[6], KEYS[7]) }
