-- HSET hash field value [field value ...], for a volatile hash; the fields lose their deadlines.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, field, value, ... Returns how many fields are new.
--@include hash
local problem = refuse()
if problem then
  return problem
end
local list = arguments(2)
local lasting = drop_past(fields_of(list))
local added = redis.pcall('HSET', hash, unpack(list, 1, math.min(#list, 4000)))
if type(added) == 'table' then
  return added
end
in_runs(4001, #list, function(first, last)
  added = added + redis.call('HSET', hash, unpack(list, first, last))
end)
if #lasting > 0 then
  clear_deadline(lasting)
  tidy()
end
return added
