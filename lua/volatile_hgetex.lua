-- HGETEX hash EX | PX | EXAT | PXAT time | PERSIST FIELDS n field ..., for a volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, then as the command takes them.
-- Returns a list of values, nil for what is missing or expired.
--@include volatile_write
--@include deadline
local at = now()
local options, problem = deadline_options('hgetex', at)
if problem then
  return problem
end
problem = refuse()
if problem then
  return problem
end
local fields, values, present = fields_argument(2), {}, {}
drop_past(fields)
local gone = options.at and is_past(options.at, at)
local taken = {}
for i, field in ipairs(fields) do
  values[i] = not taken[field] and redis.call('HGET', hash, field)
  if values[i] then
    present[#present + 1] = field
    taken[field] = gone
  end
end
if #present == 0 then
  return values
end
if gone then
  remove(present)
  tidy()
elseif options.at then
  problem = schedule(options.at)
  if problem then
    return problem
  end
  set_deadline(present, options.at)
else
  clear_deadline(present)
  tidy()
end
return values
