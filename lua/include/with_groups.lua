-- with_groups(): the names of the groups that have ever read, behind what a list has already.
--   KEYS[1] meta, a hash: group:<G>, and others
local function with_groups(list)
  local found = redis.call('HKEYS', KEYS[1])
  for i = 1, #found do
    local group = string.match(found[i], '^group:(.*)$')
    if group then
      list[#list + 1] = group
    end
  end
  return list
end
