-- HSET hash field value [field value ...], for a volatile hash; the fields lose their deadlines.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] mark
--   ARGV[2..] field, value, ...
-- Returns how many fields are new.
--@include hash
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse(hash, deadlines, due, mark, ARGV[1])
if problem then
  return problem
end
local list = arguments(ARGV, 2)
local lasting = drop_past(hash, deadlines, fields_of(list))
local added = redis.pcall('HSET', hash, unpack(list, 1, math.min(#list, 4000)))
if type(added) == 'table' then
  return added
end
in_runs(4001, #list, function(first, last)
  added = added + redis.call('HSET', hash, unpack(list, first, last))
end)
if #lasting > 0 then
  clear_deadline(deadlines, lasting)
  tidy(hash, deadlines, due)
end
return added
