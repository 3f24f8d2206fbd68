-- Setting fields and deadlines, behind the guard.
--@include schedule
--@include call_in_runs

local function set_deadline(fields, at)
  local score, members = string.format('%.0f', at), {}
  for i, field in ipairs(fields) do
    members[#members + 1] = score
    members[#members + 1] = field
    if #members == 4000 or i == #fields then
      redis.call('ZADD', deadlines, unpack(members))
      members = {}
    end
  end
end

-- Sets the fields of a list field, value, field, value, ...; returns how many are new.
local function set_values(list)
  return call_in_runs('HSET', hash, list, 1)
end
