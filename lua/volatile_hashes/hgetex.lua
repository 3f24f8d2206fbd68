-- HGETEX hash EX | PX | EXAT | PXAT time | PERSIST FIELDS n field ..., for a volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, then the arguments in the command's own order.
-- Returns a list of values, nil for what is missing or expired.
--@include hash
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local at = now()
local options, problem = deadline_options(ARGV, 'hgetex', at)
if problem then
  return problem
end
local gone = options.at and is_past(options.at, at)
local schedules = options.at and not gone
problem = refuse(hash, deadlines, due, mark, ARGV[1], schedules)
if problem then
  return problem
end
local fields, present, taken = fields_argument(ARGV, 2), {}, {}
local values = live_values(hash, deadlines, fields, at)
for i, field in ipairs(fields) do
  if taken[field] then
    values[i] = false
  elseif values[i] then
    present[#present + 1] = field
    taken[field] = gone
  end
end
if #present == 0 then
  return schedules and refuse_due(due) or values
end
if schedules then
  problem = schedule(due, hash, options.at)
  if problem then
    return problem
  end
  set_deadline(deadlines, present, options.at)
  return values
end
-- From here on the parts that most calls do without.
do
  --@include hash
  if gone then
    remove(hash, deadlines, present)
  else
    clear_deadline(deadlines, present)
  end
  tidy(hash, deadlines, due)
  return values
end
