-- deadlines_of(): when fields of a volatile hash end.
--@include one_hash
--@include runs

-- The deadlines of fields, in order: strings, or false where there is none.
local function deadlines_of(fields)
  local found = {}
  in_runs(1, #fields, function(first, last)
    local run = redis.call('ZMSCORE', deadlines, unpack(fields, first, last))
    for i = 1, #run do
      found[first + i - 1] = run[i]
    end
  end)
  return found
end
