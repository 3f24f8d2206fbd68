-- The namespace of a due index, whose key is `{tag}:ws:namespace:due`.
local function namespace_of(due)
  return string.match(due, ':ws:([^:]*):due$')
end

-- Whether meta names another namespace than the due index is of. One that names none is of any.
local function is_elsewhere(named, due)
  return named and not string.find(due, ':ws:' .. named .. ':due', 1, true)
end
