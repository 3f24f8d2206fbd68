-- HEXPIRE hash amount [NX | XX | GT | LT] FIELDS n field [field ...], and its siblings, for a volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, the command's name in lower case, the ms of its unit, 1 if
-- the amount is from now, else 0, amount, [condition], FIELDS, n, fields.
-- Returns per field: -2 no such field, 0 condition not met, 1 set, 2 deleted (time already past).
--@include hash
--@include conditions
local at = now()
local deadline, problem = deadline_from(ARGV[5], ARGV[3], ARGV[4] == '1', ARGV[2], at)
if not deadline then
  return problem
end
problem = refuse()
if problem then
  return problem
end
local is = { [string.upper(ARGV[6])] = true }
local fields = fields_argument(6)
drop_past(fields)
local current = deadlines_of(fields)
local known, replies, chosen = {}, {}, {}
for i, field in ipairs(fields) do
  if known[field] == nil then
    local exists = redis.call('HEXISTS', hash, field) == 1
    known[field] = { exists = exists, deadline = current[i] and tonumber(current[i]) }
  end
  local state = known[field]
  if not state.exists then
    replies[i] = -2
  elseif not is_met(is, state.deadline, deadline) then
    replies[i] = 0
  elseif is_past(deadline, at) then
    replies[i] = 2
    state.exists = false
    chosen[#chosen + 1] = field
  else
    replies[i] = 1
    state.deadline = deadline
    chosen[#chosen + 1] = field
  end
end
if #chosen > 0 then
  if is_past(deadline, at) then
    remove(chosen)
    tidy()
  else
    problem = schedule(deadline)
    if problem then
      return problem
    end
    set_deadline(chosen, deadline)
  end
end
return replies
