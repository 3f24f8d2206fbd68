-- HEXPIRE and its three siblings.
-- Returns per field: -2 no such field, 0 condition not met, 1 set, 2 deleted (time already past).
--@include volatile_write
--@include set_fields
--@include arguments
--@include deadline
local function expire_fields(command, unit_ms, is_relative)
  local at = now()
  local deadline, problem = deadline_from(ARGV[2], unit_ms, is_relative, command, at)
  if not deadline then
    return problem
  end
  problem = refuse()
  if problem then
    return problem
  end
  local condition = string.upper(ARGV[3])
  local fields = fields_argument(3)
  drop_past(fields)
  local current = deadlines_of(fields)
  local known, replies, chosen = {}, {}, {}
  for i, field in ipairs(fields) do
    if known[field] == nil then
      local exists = redis.call('HEXISTS', hash, field) == 1
      known[field] = { exists = exists, deadline = current[i] and tonumber(current[i]) }
    end
    local state = known[field]
    local has = state.deadline
    if not state.exists then
      replies[i] = -2
    elseif
      (condition == 'NX' and has)
      or (condition == 'XX' and not has)
      or (condition == 'GT' and not (has and deadline > has))
      or (condition == 'LT' and has and deadline >= has)
    then
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
end
