--@library
-- The rules of a fair queue as a whole.
--@include account

-- Notes in meta that the rules have changed, so that each account looks for its rule anew, and which patterns there are.
-- The pattern with the most plain letters is the most particular. Returns the rules' version.
local function note_rules(keys, at)
  local patterns = {}
  for _, each in ipairs(redis.call('HKEYS', keys[RULES])) do
    if string.find(each, '[*?]') then
      patterns[#patterns + 1] = each
    end
  end
  local function letters(each)
    return #string.gsub(each, '[*?]', '')
  end
  table.sort(patterns, function(a, b)
    if letters(a) ~= letters(b) then
      return letters(a) > letters(b)
    end
    return a < b
  end)
  for i = 1, #patterns do
    patterns[i] = #patterns[i] .. ':' .. patterns[i]
  end
  local version = stored(keys[META], 'rules', redis.call('HGET', keys[META], 'rules'), 0, MOST_STORED - 1, 0)
  version = math.max(at, version + 1)
  redis.call('HSET', keys[META], 'rules', whole(version), 'patterns', table.concat(patterns))
  return version
end
