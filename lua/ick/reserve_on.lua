-- Goes on with a reservation that is larger than one script may make.
-- KEYS: version, producer set, consumer set, held, attempts. ARGV: its token, how many to reserve,
-- what is left to be done, how many members have been returned.
-- Returns { { member, score, ... }, what is left to be done ('' for nothing) }; nil, with nothing
-- changed, if another reservation holds.
--@include reservation
local current = current_token()
local problem = type(current) == 'table' and current or refuse(false)
if problem or current ~= ARGV[1] then
  return problem or false
end
local list, left = reserve_on(tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]))
return { list, left }
